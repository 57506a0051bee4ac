#include "kv_cache.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "quantize.hpp"

namespace pagemesh {

void KvCache::store(int64_t layer, int64_t block, int64_t head, int64_t slot, const int32_t* key, const float* value) {
  if (format_ == KvFormat::bf16)
    store_bf16(keys<uint16_t>(layer, block, head), slot, key, value);
  else
    store_int8(keys<int8_t>(layer, block, head), slot, key, value);
}

void KvCache::store_bf16(uint16_t* keys, int64_t slot, const int32_t* key, const float* value) const {
  auto* lines = reinterpret_cast<int32_t*>(keys);
  for (int64_t pair = 0; pair < head_size_ / 2; ++pair) lines[pair * kBlockTokens + slot] = key[pair];
  uint16_t* values = values_behind(keys);
  if (slot == 0) std::memset(values, 0, kBlockTokens * head_size_ * 2);
  uint16_t* pairs = values + slot / 2 * head_size_ * 2;
  const __mmask32 which = slot % 2 == 0 ? 0x55555555u : 0xaaaaaaaau;
  for (int64_t dim = 0; dim < head_size_; dim += kLanes) {
    __m512i upper = round_to_bf16(_mm512_loadu_ps(value + dim));
    __m512i both = _mm512_or_si512(_mm512_and_si512(upper, _mm512_set1_epi32(static_cast<int>(0xffff0000))),
                                   _mm512_srli_epi32(upper, 16));
    _mm512_mask_storeu_epi16(pairs + dim * 2, which, both);
  }
}

// Keys as their bf16 pairs say, values as they are.
void KvCache::store_int8(int8_t* keys, int64_t slot, const int32_t* key, const float* value) const {
  int8_t* values = values_behind(keys);
  float *key_scales = scales_behind(keys), *value_scales = key_scales + kBlockTokens;
  if (slot == 0) {
    std::memset(values, 0, kBlockTokens * head_size_);
    std::fill_n(value_scales, kBlockTokens, 0.0f);
  }
  auto* key_halves = reinterpret_cast<const uint16_t*>(key);
  auto halves_from = [&](int64_t index) {
    const auto within = static_cast<__mmask16>((1u << std::min<int64_t>(head_size_ - index, kLanes)) - 1);
    return from_bf16(_mm256_maskz_loadu_epi16(within, key_halves + index));
  };
  __m512i largest_key = _mm512_setzero_si512(), largest_value = largest_key;
  for (int64_t index = 0; index < head_size_; index += kLanes) {
    largest_key = larger_magnitude(largest_key, halves_from(index));
    largest_value = larger_magnitude(largest_value, _mm512_loadu_ps(value + index));
  }
  key_scales[slot] = reduce_magnitude(largest_key) / 127, value_scales[slot] = reduce_magnitude(largest_value) / 127;
  const __m512 key_inverse = _mm512_set1_ps(inverse_of(key_scales[slot]));
  const __m512 value_inverse = _mm512_set1_ps(inverse_of(value_scales[slot]));
  alignas(16) int8_t codes[kLanes];
  for (int64_t index = 0; index < head_size_; index += kLanes) {
    auto take = [&](__m512 of, __m512 inverse) {
      _mm_store_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(to_codes(of, inverse)));
    };
    take(halves_from(index), key_inverse);
    for (int64_t lane = 0; lane < kLanes; ++lane)
      keys[((index + lane) / 2 * kBlockTokens + slot) * 2 + lane % 2] = codes[lane];
    take(_mm512_loadu_ps(value + index), value_inverse);
    for (int64_t lane = 0; lane < kLanes; ++lane)
      values[(slot / 2 * head_size_ + index + lane) * 2 + slot % 2] = codes[lane];
  }
}

void KvCache::read(int64_t layer, int64_t block, int64_t head, int64_t slot, float* key, float* value) const {
  const auto* halves = keys<uint16_t>(layer, block, head);
  auto* codes = keys<int8_t>(layer, block, head);
  auto number = [&](bool is_value, int64_t index) {
    const int64_t place = is_value ? key_lines() * 32 + index : index;
    if (format_ == KvFormat::bf16)
      return _mm512_cvtss_f32(from_bf16(_mm256_set1_epi16(static_cast<int16_t>(halves[place]))));
    const float exact = static_cast<float>(codes[place]) * scales_behind(codes)[is_value * kBlockTokens + slot];
    return _mm512_cvtss_f32(from_bf16(to_bf16(_mm512_set1_ps(exact))));
  };
  for (int64_t dim = 0; dim < head_size_; ++dim) {
    const int64_t pair = dim % (head_size_ / 2), is_second = dim / (head_size_ / 2);
    key[dim] = number(false, (pair * kBlockTokens + slot) * 2 + is_second);
    value[dim] = number(true, (slot / 2 * head_size_ + dim) * 2 + slot % 2);
  }
}

void KvCache::poison(int64_t block) {
  constexpr uint16_t kNan = 0x7fc0;
  for (int64_t layer = 0; layer < num_layers_; ++layer)
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      if (format_ == KvFormat::int8) {
        std::fill_n(scales_behind(keys<int8_t>(layer, block, head)), 2 * kBlockTokens,
                    std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      auto* lines = keys<uint16_t>(layer, block, head);
      std::fill_n(lines, head_size_ / 2 * 32, kNan);  // the padding stays zero
      std::fill_n(values_behind(lines), kBlockTokens * head_size_, kNan);
    }
}

}  // namespace pagemesh
