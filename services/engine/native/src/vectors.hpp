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

// 2^x for x <= 0 by its Taylor series, relative error below 3e-6, a thousandth of bf16's; exp2(0) is 1 exactly.
inline __m512 exp2_negative(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);  // the operand order keeps NaN
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_fmadd_ps(part, _mm512_set1_ps(1.333355814642844e-3f), _mm512_set1_ps(9.618129107628477e-3f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(5.550410866482158e-2f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(2.402265069591007e-1f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(6.931471805599453e-1f));
  sum = _mm512_fmadd_ps(part, sum, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(sum, whole);
}

// 1 / x for x from 1 to 2, in Newton steps from a line: a division would take longer than a row's tile products.
inline __m512 reciprocal_1_to_2(__m512 x) {
  const __m512 two = _mm512_set1_ps(2.0f);
  __m512 guess = _mm512_fnmadd_ps(x, _mm512_set1_ps(8.0f / 17), _mm512_set1_ps(24.0f / 17));
  guess = _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, two));
  guess = _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, two));
  return _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, two));
}

// x / (1 + e^-x), by way of e^-|x|, which cannot overflow.
inline __m512 silu(__m512 x) {
  __m512 shrunk = exp2_negative(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-1.44269504f)));
  __m512 one = _mm512_set1_ps(1.0f);
  __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  __m512 numerator = _mm512_mul_ps(x, _mm512_mask_mov_ps(one, is_negative, shrunk));
  return _mm512_mul_ps(numerator, reciprocal_1_to_2(_mm512_add_ps(one, shrunk)));
}

constexpr int kNotFinite = 0x99;  // of VFPCLASSPS: quiet and signalling NaN, both infinities

inline bool are_finite(__m512 x) { return _mm512_fpclass_ps_mask(x, kNotFinite) == 0; }

}  // namespace pagemesh
