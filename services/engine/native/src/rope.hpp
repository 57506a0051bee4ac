// Rotary positions (arXiv:2104.09864) in the half-split form: dims i and i + half turn together.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "vectors.hpp"

namespace pagemesh {

// Fills cosines and sines [half] of one position; angles are taken in fp32, as the torch decoder takes them.
inline void rotation_of(int64_t position, const float* frequencies, int64_t half, float* cosines, float* sines) {
  for (int64_t pair = 0; pair < half; ++pair)
    sincosf(static_cast<float>(position) * frequencies[pair], sines + pair, cosines + pair);
}

// Turns one head and gives its pairs in bf16; pairs from half to a multiple of 16 are not touched.
inline void rotate(const float* head, const float* cosines, const float* sines, int64_t half, int32_t* pairs) {
  for (int64_t pair = 0; pair < half; pair += kLanes) {
    const __mmask16 within = half - pair >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (half - pair)) - 1);
    __m512 low = _mm512_maskz_loadu_ps(within, head + pair), high = _mm512_maskz_loadu_ps(within, head + half + pair);
    __m512 cosine = _mm512_maskz_loadu_ps(within, cosines + pair), sine = _mm512_maskz_loadu_ps(within, sines + pair);
    __m512 turned_low = _mm512_fmsub_ps(low, cosine, _mm512_mul_ps(high, sine));
    __m512 turned_high = _mm512_fmadd_ps(high, cosine, _mm512_mul_ps(low, sine));
    _mm512_mask_storeu_epi32(pairs + pair, within, pair_bf16(turned_low, turned_high));
  }
}

}  // namespace pagemesh
