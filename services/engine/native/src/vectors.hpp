// Sixteen floats at a time: conversion to and from bf16, exp, sums. Every lane is computed alike, so where a
// value stands never changes its bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

namespace pagemesh {

constexpr int kLanes = 16;

// Round to nearest even; NaN stays NaN.
inline __m512i round_to_bf16(__m512 x) {
  __m512i bits = _mm512_castps_si512(x);
  __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
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

// 2^x for x <= 0, relative error below 4e-7 (Cephes' polynomial); exp2(0) is 1 exactly.
inline __m512 exp2_negative(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);  // the operand order keeps NaN
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.535336188319500e-4f);
  for (float factor : {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f, 2.402264791363012e-1f,
                       6.931472028550421e-1f, 1.0f})
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, whole);
}

// x / (1 + e^-x), by way of e^-|x|, which cannot overflow.
inline __m512 silu(__m512 x) {
  __m512 shrunk = exp2_negative(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-1.44269504f)));
  __m512 is_one = _mm512_set1_ps(1.0f);
  __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  __m512 numerator = _mm512_mask_mov_ps(is_one, is_negative, shrunk);
  return _mm512_mul_ps(x, _mm512_div_ps(numerator, _mm512_add_ps(is_one, shrunk)));
}

inline bool are_finite(__m512 x) { return _mm512_fpclass_ps_mask(x, 0x99) == 0; }

}  // namespace pagemesh
