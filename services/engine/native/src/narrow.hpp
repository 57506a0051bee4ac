// Sixteen or thirty-two floats as bf16, rounded to nearest even.
#pragma once

#include <immintrin.h>

#include "vectors.hpp"

namespace pagemesh {

struct NarrowByShifts {
  static void store(uint16_t* to, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(values));
  }

  static void store(uint16_t* to, __m512 first, __m512 second) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bf16(first));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kLanes), to_bf16(second));
  }
};

}  // namespace pagemesh
