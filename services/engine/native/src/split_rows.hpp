// Activations in 15 bits: x = scale * (128 * high + low), high in [-127, 127], low in [-64, 63]. A row with anything
// that is not finite gets a scale that is not.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "activations.hpp"
#include "quantize.hpp"

namespace pagemesh {

inline void split_row(const Activations& activations, int64_t row) {
  const float* from = activations.row_of(row);
  const int64_t size = activations.num_k_steps() * kTileDepth;
  __m512i largest = _mm512_setzero_si512(), high_sum = largest, low_sum = largest;
  for (int64_t column = 0; column < size; column += kLanes)
    largest = larger_magnitude(largest, _mm512_loadu_ps(from + column));
  const float scale = reduce_magnitude(largest) / (127 * 128);
  const __m512 inverse = _mm512_set1_ps(inverse_of(scale));
  for (int64_t column = 0; column < size; column += kLanes) {
    const __m512i code = to_codes(_mm512_loadu_ps(from + column), inverse);
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(64)), 7);
    const __m512i low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 7));
    high_sum = _mm512_add_epi32(high_sum, high), low_sum = _mm512_add_epi32(low_sum, low);
    int8_t* to = activations.split_tile(row / kTileRows, column / kSplitDepth) + row % kTileRows * kSplitDepth +
                 column % kSplitDepth;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kTileBytes), _mm512_cvtepi32_epi8(low));
  }
  activations.split_scale(row) = {scale, _mm512_reduce_add_epi32(high_sum), _mm512_reduce_add_epi32(low_sum)};
}

}  // namespace pagemesh
