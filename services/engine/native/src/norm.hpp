// RMSNorm (arXiv:1910.07467) of one row in fp32.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace pagemesh {

// 1 / root mean square; `row` is zero from `size` to `padded_size`, a multiple of 16.
inline float inverse_rms(const float* row, int64_t size, int64_t padded_size, float epsilon) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t column = 0; column < padded_size; column += 16) {
    __m512 x = _mm512_loadu_ps(row + column);
    sum = _mm512_fmadd_ps(x, x, sum);
  }
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / static_cast<float>(size) + epsilon);
}

// Calls store(column / 16, values) for row * weight / root mean square.
template <class Store>
void normalize(const float* row, const float* weight, int64_t size, int64_t padded_size, float epsilon, Store store) {
  const __m512 factor = _mm512_set1_ps(inverse_rms(row, size, padded_size, epsilon));
  for (int64_t column = 0; column < padded_size; column += 16)
    store(column / 16, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + column), factor),
                                     _mm512_loadu_ps(weight + column)));
}

}  // namespace pagemesh
