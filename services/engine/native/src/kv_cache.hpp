// The paged KV pool: where a token's key and value of a head lie, and nothing about attention.
//
//   [layer][block][kv head][ K: head_size / 2 pairs of dims x 16 tokens x 2 | V: 8 pairs of tokens x head_size x 2 ]
//
// in bf16, or in int8 with [16 key scales | 16 value scales] fp32 behind them: 16 keys are a tile for queries x keys, 16 values one for weights x values. A pair of dims is (i, i + half),
// which RoPE turns together; queries pair theirs alike. Lines of keys are padded with zeros to whole tiles.
// INT8 is quantized once, when a token is stored, so all who read it read the same; see quantization/kv.py.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "tiles.hpp"

namespace pagemesh {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kMaxKeyLines = 128;  // heads of at most 256

enum class KvFormat : int32_t { bf16 = 0, int8 = 1 };

class KvCache {
 public:
  KvCache() = default;
  KvCache(int64_t num_layers, int64_t num_kv_heads, int64_t head_size, KvFormat format)
      : num_layers_(num_layers), num_kv_heads_(num_kv_heads), head_size_(head_size), format_(format) {}

  void allocate(int64_t num_blocks) {
    num_blocks_ = num_blocks;
    layers_.clear();
    for (int64_t layer = 0; layer < num_layers_; ++layer)
      layers_.emplace_back(num_blocks * num_kv_heads_ * head_bytes());
  }

  // Stores one token's key (key_lines() pairs of bf16) and value (head_size floats) at a slot of a block. The slot 0
  // begins the block: values that were there before are cleared, since a product with an unused one must be 0.
  void store(int64_t layer, int64_t block, int64_t head, int64_t slot, const int32_t* key, const float* value);

  // Of a block's head: bf16 or int8 keys, and the values and scales behind them.
  template <class Code>
  Code* keys(int64_t layer, int64_t block, int64_t head) const {
    return reinterpret_cast<Code*>(layers_[layer].as<char>() + (block * num_kv_heads_ + head) * head_bytes());
  }
  template <class Code>
  Code* values_behind(Code* keys) const { return keys + key_lines() * 32; }
  float* scales_behind(int8_t* keys) const {
    return reinterpret_cast<float*>(values_behind(keys) + kBlockTokens * head_size_);
  }

  void poison(int64_t block);  // fills it with NaN

  // One token's key and value [head_size] as attention computes with them, the key's dims in their own order.
  void read(int64_t layer, int64_t block, int64_t head, int64_t slot, float* key, float* value) const;

  int64_t key_lines() const { return round_up(head_size_ / 2, kTileRows); }
  int64_t head_size() const { return head_size_; }
  KvFormat format() const { return format_; }
  int64_t head_codes() const { return key_lines() * 32 + kBlockTokens * head_size_; }
  int64_t head_bytes() const {
    return format_ == KvFormat::bf16 ? head_codes() * 2 : head_codes() + 2 * kBlockTokens * sizeof(float);
  }
  int64_t block_bytes() const { return num_layers_ * num_kv_heads_ * head_bytes(); }
  int64_t num_blocks() const { return num_blocks_; }

 private:
  void store_bf16(uint16_t* keys, int64_t slot, const int32_t* key, const float* value) const;
  void store_int8(int8_t* keys, int64_t slot, const int32_t* key, const float* value) const;

  int64_t num_layers_ = 0, num_kv_heads_ = 0, head_size_ = 0, num_blocks_ = 0;
  KvFormat format_ = KvFormat::bf16;
  std::vector<Buffer> layers_;
};

}  // namespace pagemesh
