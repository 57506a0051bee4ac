// The keys and values of one head as bf16 tiles: those of a bf16 cache where they lie, those of an INT8 cache turned
// into bf16 beside it, once for all tiles of queries that a thread computes for the same sequence and head.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention.hpp"
#include "kv_cache.hpp"
#include "vectors.hpp"

namespace pagemesh {

// Sixteen int8 as floats, times scales.
inline __m512 scaled_codes(const int8_t* codes, __m512 scales) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scales);
}

// One block of one head; Narrow::store(to, first, second) writes 32 floats as bf16.
template <class Narrow>
void unpack_block(const KvCache& cache, int8_t* codes, uint16_t* to) {
  const float *key_scales = cache.scales_behind(codes), *value_scales = key_scales + kBlockTokens;
  const __m512 of_tokens = _mm512_loadu_ps(key_scales);
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512 first = _mm512_permutexvar_ps(twice, of_tokens);
  const __m512 second = _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), of_tokens);
  for (int64_t line = 0; line < cache.key_lines(); ++line, codes += 32, to += 32) {
    if (line * 2 < cache.head_size())
      Narrow::store(to, scaled_codes(codes, first), scaled_codes(codes + kLanes, second));
    else
      _mm512_storeu_si512(to, _mm512_setzero_si512());  // padding, whatever the scales are
  }
  for (int64_t pair = 0; pair < kBlockTokens / 2; ++pair) {
    const __m512 both = _mm512_castpd_ps(_mm512_set1_pd(reinterpret_cast<const double*>(value_scales)[pair]));
    for (int64_t dim = 0; dim < cache.head_size(); dim += kLanes, codes += 32, to += 32)
      Narrow::store(to, scaled_codes(codes, both), scaled_codes(codes + kLanes, both));
  }
}

// Gives pointers to blocks [first, first + count) of the item's sequence and head.
template <class Narrow>
void read_blocks(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch, int64_t first,
                 int64_t count, const uint16_t** keys, const uint16_t** values) {
  const KvCache& cache = *layer.cache;
  const int32_t* table = item.span->table;
  if (cache.format() == KvFormat::bf16) {
    for (int64_t index = 0; index < count; ++index) {
      keys[index] = cache.keys<uint16_t>(layer.layer, table[first + index], item.kv_head);
      values[index] = cache.values_behind(keys[index]);
    }
    return;
  }
  scratch.hold({layer.step, layer.layer, item.span->first_token, item.kv_head}, first + count, cache.head_codes());
  for (int64_t index = 0; index < count; ++index) {
    uint16_t* place = scratch.unpacked.as<uint16_t>() + (first + index) * cache.head_codes();
    if (!scratch.is_unpacked[first + index]) {
      unpack_block<Narrow>(cache, cache.keys<int8_t>(layer.layer, table[first + index], item.kv_head), place);
      scratch.is_unpacked[first + index] = 1;
    }
    keys[index] = place;
    values[index] = cache.values_behind(keys[index]);
  }
}

}  // namespace pagemesh
