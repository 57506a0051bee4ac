#include "unpack_groups.hpp"

namespace pagemesh {
namespace {

struct NarrowByShifts {
  static void store(uint16_t* to, __m512 first, __m512 second) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(first));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kLanes), to_bf16(second));
  }
};

}  // namespace

void unpack_groups_avx512(const Linear& linear, int64_t panel, const char* next, uint16_t* tiles) {
  unpack_groups<NarrowByShifts>(linear, panel, next, tiles);
}

}  // namespace pagemesh
