// Sixteen or thirty-two floats as bf16 by VCVTNEPS2BF16. Only for files compiled with -mavx512bf16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace pagemesh {

struct NarrowByInstruction {
  static void store(uint16_t* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
  }

  static void store(uint16_t* to, __m512 first, __m512 second) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
};

}  // namespace pagemesh
