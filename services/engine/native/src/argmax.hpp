// The greedy choice of a row of logits.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "vectors.hpp"

namespace pagemesh {

// The index of the highest value, the lowest at ties; -1 if any value is not finite. `size` floats, at least one.
inline int32_t index_of_highest(const float* values, int64_t size) {
  auto lanes_at = [&](int64_t index) {
    return size - index >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1u << (size - index)) - 1);
  };
  const __m512 first = _mm512_set1_ps(values[0]);
  __m512 highest = first;
  __mmask16 not_finite = 0;
  for (int64_t index = 0; index < size; index += kLanes) {
    __m512 value = _mm512_mask_loadu_ps(first, lanes_at(index), values + index);
    highest = _mm512_max_ps(highest, value);
    not_finite |= _mm512_fpclass_ps_mask(value, kNotFinite);
  }
  if (not_finite) return -1;
  highest = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
  for (int64_t index = 0;; index += kLanes) {
    __m512 value = _mm512_mask_loadu_ps(first, lanes_at(index), values + index);
    if (__mmask16 equal = _mm512_cmp_ps_mask(value, highest, _CMP_EQ_OQ) & lanes_at(index))
      return static_cast<int32_t>(index + __builtin_ctz(equal));
  }
}

}  // namespace pagemesh
