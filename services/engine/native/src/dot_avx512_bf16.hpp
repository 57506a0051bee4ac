// Products of bf16 pairs with VDPBF16PS. Only for files compiled with -mavx512bf16.
#pragma once

#include <immintrin.h>

namespace pagemesh {

struct DotAvx512Bf16 {
  static __m512 add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace pagemesh
