// Sixteen floats at a time into whole numbers with one scale for many.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "vectors.hpp"

namespace pagemesh {

constexpr float kSmallestScale = 1e-30f;  // below it the inverse would not be finite: all counts as zeros

inline float inverse_of(float scale) { return scale > kSmallestScale ? 1.0f / scale : 0.0f; }

// Magnitudes as integers: infinity and NaN are larger than any number.
inline __m512i larger_magnitude(__m512i largest, __m512 values) {
  return _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff)));
}

inline float reduce_magnitude(__m512i largest) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(largest))));
}

inline __m512i to_codes(__m512 values, __m512 inverse) { return _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse)); }

}  // namespace pagemesh
