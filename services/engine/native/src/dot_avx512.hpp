// Products of bf16 pairs with AVX512 F alone: a bf16 is the upper half of a float.
#pragma once

#include <immintrin.h>

namespace pagemesh {

struct DotAvx512 {
  static __m512 add(__m512 sum, __m512i a, __m512i b) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    __m512 a_low = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), b_low = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
    __m512 a_high = _mm512_castsi512_ps(_mm512_and_si512(a, upper));
    __m512 b_high = _mm512_castsi512_ps(_mm512_and_si512(b, upper));
    return _mm512_fmadd_ps(a_high, b_high, _mm512_fmadd_ps(a_low, b_low, sum));
  }
};

}  // namespace pagemesh
