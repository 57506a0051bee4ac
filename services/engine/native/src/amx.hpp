// AMX instructions by tile number. GCC 12's own intrinsics do not say that they touch memory, so stores before them
// would be dropped; these do. Only for files compiled with -mamx-tile -mamx-bf16 -mamx-int8.
#pragma once

#include <cstdint>
#include <cstring>

namespace pagemesh::amx {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

inline void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config) : "memory"); }

// Gives the tile state back: a thread that holds none is switched faster.
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

template <int kTile>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// sum += a x b, where a row of `b` holds pairs along K.
template <int kSum, int kA, int kB>
inline void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

// The same with quads of int8 and sums in int32.
template <int kSum, int kA, int kB>
inline void multiply_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace pagemesh::amx
