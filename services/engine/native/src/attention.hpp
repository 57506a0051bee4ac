// Paged attention for one tile: up to 16 (token, query head) pairs that share a key head, against their past.
//
// Decode and prefill are this same computation. Positions are walked in pieces of 1,024 counted from position 0, and
// what a query may not see counts as exactly 0, so a query's bits do not depend on which others share its tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.hpp"
#include "cpu.hpp"
#include "kv_cache.hpp"

namespace pagemesh {

// The tokens of one sequence in a step.
struct Span {
  int64_t first_token;  // index in the step
  int64_t num_tokens;
  int64_t start;         // absolute position of the first
  const int32_t* table;  // block ids from position 0
};

struct AttentionItem {
  const Span* span;
  int64_t kv_head;
  int64_t first_query;  // of the span's num_tokens * group queries, token by token
  int64_t num_queries;  // at most 16
};

// What all items of a layer share.
struct LayerAttention {
  const KvCache* cache;
  int64_t step;  // counts steps
  int64_t layer;
  const int32_t* queries;  // [kv head][token * group + head in group][key_lines] pairs of bf16
  int64_t queries_per_kv_head;
  int64_t group;   // query heads of a key head
  int64_t window;  // positions a query sees, itself included; 0: all
  float scale;     // of scores before the softmax
  Activations* attended;
};

// A thread's working memory.
struct AttentionScratch {
  static constexpr int64_t kPieceBlocks = 64;
  static constexpr int64_t kScoreStride = kPieceBlocks * kBlockTokens + 16;   // a line more than a page, so that
  static constexpr int64_t kWeightStride = kPieceBlocks * kBlockTokens + 32;  // queries meet in no set of L1
  explicit AttentionScratch(int64_t head_size)
      : scores(kTileRows * kScoreStride * 4), weights(kTileRows * kWeightStride * 2), sums(kTileRows * head_size * 4) {}
  Buffer scores;   // [16 queries][kScoreStride] fp32
  Buffer weights;  // [16 queries][kWeightStride] bf16
  Buffer sums;     // [16 queries][head_size] fp32

  // Of an INT8 cache: which sequence and head is turned into bf16 here, and which of its blocks already are.
  struct Held {
    int64_t step = -1, layer = 0, first_token = 0, kv_head = 0;
    bool operator==(const Held&) const = default;
  };
  void hold(const Held& wanted, int64_t num_blocks, int64_t codes_per_block) {
    const bool is_held = wanted == held, has_room = unpacked.size() >= size_t(num_blocks * codes_per_block * 2);
    if (!has_room) unpacked = Buffer(2 * num_blocks * codes_per_block * 2);
    if (!is_held || !has_room) is_unpacked.clear();
    is_unpacked.resize(std::max<size_t>(is_unpacked.size(), num_blocks));
    held = wanted;
  }
  int64_t num_bytes() const { return scores.size() + weights.size() + sums.size() + unpacked.size(); }
  Held held;
  Buffer unpacked;                    // [block of the sequence][head_codes] bf16
  std::vector<uint8_t> is_unpacked;   // [block of the sequence]
};

using AttentionKernel = void (*)(const LayerAttention&, const AttentionItem&, AttentionScratch&);

AttentionKernel attention_of(KernelPath path);

void attend_amx(const LayerAttention&, const AttentionItem&, AttentionScratch&);
void attend_avx512_bf16(const LayerAttention&, const AttentionItem&, AttentionScratch&);
void attend_avx512(const LayerAttention&, const AttentionItem&, AttentionScratch&);

}  // namespace pagemesh
