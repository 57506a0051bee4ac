// Groups of codes into bf16 tiles. Included by one file per instruction set, with its own Narrow.
#pragma once

#include <immintrin.h>

#include "linear_groups.hpp"
#include "vectors.hpp"

namespace pagemesh {

// Sixteen float16 of one side, each for the two operands of its column: columns 0-7, then 8-15.
struct Doubled {
  __m512 first, second;

  explicit Doubled(const char* halves) {
    const __m512 columns = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    first = _mm512_permutexvar_ps(twice, columns);
    second = _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), columns);
  }
};

// Narrow::store(to, first, second): 32 floats as bf16, rounded to nearest even.
template <class Narrow>
void unpack_nibbles(const char* group, int64_t side, uint16_t* tile) {
  const Doubled scale(group + side * 32), minimum(group + 64 + side * 32);
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const char* lines = group + GroupLayout{4}.codes_begin() + side * 256;
  for (int line = 0; line < 4; ++line) {
    __m512i codes = _mm512_loadu_si512(lines + line * 64);
    for (int pair = 0; pair < 4; ++pair, tile += 32) {  // a permutation looks at four bits of each lane
      const __m512 first = _mm512_permutexvar_ps(codes, numbers);
      const __m512 second = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), numbers);
      codes = _mm512_srli_epi32(codes, 8);
      Narrow::store(tile, _mm512_fmadd_ps(first, scale.first, minimum.first),
                    _mm512_fmadd_ps(second, scale.second, minimum.second));
    }
  }
}

template <class Narrow>
void unpack_bytes(const char* group, int64_t side, uint16_t* tile) {
  const Doubled scale(group + side * 32);
  const char* codes = group + GroupLayout{8}.codes_begin() + side * 512;
  auto widen = [&](const char* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  };
  for (int pair = 0; pair < 16; ++pair, tile += 32, codes += 32)
    Narrow::store(tile, _mm512_mul_ps(widen(codes), scale.first), _mm512_mul_ps(widen(codes + 16), scale.second));
}

// One step along K of a panel: two tiles.
template <class Narrow>
void unpack_step(const GroupLayout& layout, const char* group, uint16_t* tiles) {
  for (int64_t side = 0; side < 2; ++side, tiles += kTileBytes / 2)
    layout.bits == 4 ? unpack_nibbles<Narrow>(group, side, tiles) : unpack_bytes<Narrow>(group, side, tiles);
}

constexpr int64_t kGroupsAhead = 4 << 10;  // bytes

template <class Narrow>
void unpack_groups(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles) {
  const GroupLayout layout = layout_of(linear);
  const char* group = linear.panel(panel);
  const WeightStream stream{group + linear.panel_bytes, next};
  for (int64_t step = 0; step < linear.num_k_steps; ++step, group += layout.num_bytes(), tiles += kTileBytes) {
    stream.prefetch(group, layout.num_bytes(), kGroupsAhead);
    unpack_step<Narrow>(layout, group, tiles);
  }
}

}  // namespace pagemesh
