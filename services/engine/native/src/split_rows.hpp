// Activations in 15 bits: x = scale * (128 * high + low), high in [-127, 127], low in [-64, 63]. A row with anything
// that is not finite gets a scale that is not.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "activations.hpp"

namespace pagemesh {

constexpr float kLargestCode = 127 * 128;
constexpr float kSmallestScale = 1e-30f;  // below it the inverse would not be finite: the row counts as zeros

// The largest magnitude; as integers, infinity and NaN are larger than any number.
inline float largest_magnitude(const float* row, int64_t size) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t column = 0; column < size; column += kLanes)
    largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_loadu_si512(row + column), _mm512_set1_epi32(0x7fffffff)));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(largest))));
}

inline void split_row(const Activations& activations, int64_t row) {
  const float* from = activations.row_of(row);
  const int64_t size = activations.num_k_steps() * kTileDepth;
  const float scale = largest_magnitude(from, size) / kLargestCode;
  const __m512 inverse = _mm512_set1_ps(scale > kSmallestScale ? 1.0f / scale : 0.0f);
  __m512i high_sum = _mm512_setzero_si512(), low_sum = _mm512_setzero_si512();
  for (int64_t column = 0; column < size; column += kLanes) {
    __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + column), inverse));
    __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(64)), 7);
    __m512i low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 7));
    high_sum = _mm512_add_epi32(high_sum, high), low_sum = _mm512_add_epi32(low_sum, low);
    int8_t* to = activations.split_tile(row / kTileRows, column / kSplitDepth) + row % kTileRows * kSplitDepth +
                 column % kSplitDepth;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kTileBytes), _mm512_cvtepi32_epi8(low));
  }
  activations.split_scale(row) = {scale, _mm512_reduce_add_epi32(high_sum), _mm512_reduce_add_epi32(low_sum)};
}

}  // namespace pagemesh
