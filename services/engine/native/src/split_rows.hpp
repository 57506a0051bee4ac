// Activations in 15 bits: x = scale * (128 * high + low), high in [-127, 127], low in [-64, 63]. A row with anything
// that is not finite gets a scale that is not.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "activations.hpp"
#include "quantize.hpp"

namespace pagemesh {

// Two registers of 32 16-bit numbers, each made by packs_epi32 of 2 x 16, as 64 bytes in their own order.
inline __m512i join_bytes(__m512i first, __m512i second) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
}

// The high halves of 32 codes.
inline __m512i high_of(__m512i codes) { return _mm512_srai_epi16(_mm512_add_epi16(codes, _mm512_set1_epi16(64)), 7); }

inline __m512i low_of(__m512i codes, __m512i high) { return _mm512_sub_epi16(codes, _mm512_slli_epi16(high, 7)); }

inline void split_row(const Activations& activations, int64_t row) {
  const float* from = activations.row_of(row);
  const int64_t size = activations.split_size();
  __m512i largest = _mm512_setzero_si512();
  for (int64_t column = 0; column < size; column += kLanes)
    largest = larger_magnitude(largest, _mm512_loadu_ps(from + column));
  const float scale = reduce_magnitude(largest) / (127 * 128);
  const __m512 inverse = _mm512_set1_ps(inverse_of(scale));
  auto codes_of = [&](const float* columns) {
    return _mm512_packs_epi32(to_codes(_mm512_loadu_ps(columns), inverse),
                              to_codes(_mm512_loadu_ps(columns + kLanes), inverse));
  };
  int8_t* to = activations.split_tile(row / kTileRows, 0) + row % kTileRows * kSplitDepth;
  for (int64_t column = 0; column < size; column += kSplitDepth, to += 2 * kTileBytes) {
    const __m512i left = codes_of(from + column), right = codes_of(from + column + 32);
    const __m512i left_high = high_of(left), right_high = high_of(right);
    _mm512_storeu_si512(to, join_bytes(left_high, right_high));
    _mm512_storeu_si512(to + kTileBytes, join_bytes(low_of(left, left_high), low_of(right, right_high)));
  }
  activations.split_scale(row) = scale;
}

}  // namespace pagemesh
