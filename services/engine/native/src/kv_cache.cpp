#include "kv_cache.hpp"

#include <algorithm>
#include <cstring>

#include "vectors.hpp"

namespace pagemesh {

void KvCache::store(int64_t layer, int64_t block, int64_t head, int64_t slot, const int32_t* key, const float* value) {
  auto* keys = reinterpret_cast<int32_t*>(place(layer, block, head));
  for (int64_t pair = 0; pair < head_size_ / 2; ++pair) keys[pair * kBlockTokens + slot] = key[pair];
  uint16_t* values = place(layer, block, head) + key_lines() * 32;
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

void KvCache::poison(int64_t block) {
  constexpr uint16_t kNan = 0x7fc0;
  for (int64_t layer = 0; layer < num_layers_; ++layer)
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      uint16_t* keys = place(layer, block, head);
      std::fill_n(keys, head_size_ / 2 * 32, kNan);  // the padding stays zero
      std::fill_n(keys + key_lines() * 32, kBlockTokens * head_size_, kNan);
    }
}

}  // namespace pagemesh
