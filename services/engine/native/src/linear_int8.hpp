// INT8 weights against activations split into two 8-bit halves. Every path gives the same bits: sums are exact, and
// what is done with them is one function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear.hpp"

namespace pagemesh {

inline int64_t num_split_steps(const Linear& linear) { return ceil_div(linear.in_size, kSplitDepth); }

// Sixteen sums of one row, of both halves, as the result: (128 * high + low) * row's scale * columns' scales.
inline __m512 combine_halves(__m512i high, __m512i low, float row_scale, const float* column_scales) {
  __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(128.0f), _mm512_cvtepi32_ps(low));
  return _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(row_scale)), _mm512_loadu_ps(column_scales));
}

void multiply_int8_amx(const PanelTask& task);
void multiply_int8_avx512_vnni(const PanelTask& task);
void multiply_int8_avx512(const PanelTask& task);

}  // namespace pagemesh
