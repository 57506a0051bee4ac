// Sixteen floats at a time: conversion to and from bf16, exp, sums. Every lane is computed alike, so where a
// value stands never changes its bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

namespace pagemesh {

constexpr int kLanes = 16;

// Round to nearest even, in the upper halves. NaN stays NaN: one that arithmetic makes, or that came in as bf16, has
// zeros in its lower half, and rounding cannot carry out of it.
inline __m512i round_to_bf16(__m512 x) {
  __m512i bits = _mm512_castps_si512(x);
  __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff)));
}

inline __m256i to_bf16(__m512 x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(x), 16)); }

inline __m512 from_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Sixteen pairs: `low` in the low halves, `high` in the high ones.
inline __m512i pair_bf16(__m512 low, __m512 high) {
  __m512i upper = _mm512_and_si512(round_to_bf16(high), _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  return _mm512_or_si512(_mm512_srli_epi32(round_to_bf16(low), 16), upper);
}

// 2^x for x <= 0 by a polynomial of least error, 3e-6, a thousandth of bf16's; exp2(0) is 1 exactly. Rounding and
// scaling are additions: VRNDSCALE and VSCALEF take two turns each. NaN stays NaN, as in round_to_bf16.
inline __m512 exp2_negative(__m512 x) {
  const __m512 round = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: a sum with it ends in an integer
  x = _mm512_max_ps(_mm512_set1_ps(-125.0f), x);     // the operand order keeps NaN
  const __m512 shifted = _mm512_add_ps(x, round);
  const __m512 part = _mm512_sub_ps(x, _mm512_sub_ps(shifted, round));
  __m512 sum = _mm512_fmadd_ps(part, _mm512_set1_ps(9.582853236e-3f), _mm512_set1_ps(5.590642594e-2f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(2.402409862e-1f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(6.931241933e-1f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
}

// 1 / x for x from 1 to 2, relative error 3e-6: a cubic of least error and one Newton step, since a division would
// take longer than a row's tile products.
inline __m512 reciprocal_1_to_2(__m512 x) {
  __m512 guess = _mm512_fmadd_ps(x, _mm512_set1_ps(-2.218371090e-1f), _mm512_set1_ps(1.331022774f));
  guess = _mm512_fmadd_ps(x, guess, _mm512_set1_ps(-2.939342022f));
  guess = _mm512_fmadd_ps(x, guess, _mm512_set1_ps(2.828423291f));
  return _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0f)));
}

// x / (1 + e^-x), by way of e^-|x|, which cannot overflow.
inline __m512 silu(__m512 x) {
  const __m512 shrunk = exp2_negative(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-1.44269504f)));
  const __m512 positive = _mm512_mul_ps(x, reciprocal_1_to_2(_mm512_add_ps(_mm512_set1_ps(1.0f), shrunk)));
  return _mm512_mask_mul_ps(positive, _mm512_movepi32_mask(_mm512_castps_si512(x)), positive, shrunk);
}

constexpr int kNotFinite = 0x99;  // of VFPCLASSPS: quiet and signalling NaN, both infinities

inline bool are_finite(__m512 x) { return _mm512_fpclass_ps_mask(x, kNotFinite) == 0; }

}  // namespace pagemesh
