// The part of attention that all kernel paths share: which blocks, the softmax, the order of it all.
// Included by one file per instruction set, with its own Products.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention.hpp"
#include "kv_reader.hpp"
#include "vectors.hpp"

namespace pagemesh {

constexpr float kNothing = -1e30f;  // the highest score of a query that saw none; finite, so differences are numbers

// The positions that one query sees.
struct Sight {
  int64_t first, last;

  __mmask16 of_block(int64_t block) const {
    const int64_t begin = std::max<int64_t>(first - block * kBlockTokens, 0);
    const int64_t end = std::min<int64_t>(last + 1 - block * kBlockTokens, kBlockTokens);
    return begin >= end ? 0 : static_cast<__mmask16>((1u << end) - (1u << begin));
  }
};

// Turns one query's scores of blocks [first_block, + num_blocks) into weights; gives what earlier sums must be
// multiplied with. Only the blocks at the ends of what it sees need masks.
template <class Narrow>
class Softmax {
 public:
  float add_piece(const float* scores, uint16_t* weights, int64_t first_block, int64_t num_blocks, Sight sight,
                  float log2_scale) {
    const int64_t whole = std::clamp<int64_t>(ceil_div(sight.first, kBlockTokens) - first_block, 0, num_blocks);
    const int64_t end = std::clamp<int64_t>((sight.last + 1) / kBlockTokens - first_block, whole, num_blocks);
    auto visit = [&](auto visit_block) {
      for (int64_t block = 0; block < whole; ++block) visit_block(block, sight.of_block(first_block + block));
      for (int64_t block = whole; block < end; ++block) visit_block(block, __mmask16{0xffff});
      for (int64_t block = end; block < num_blocks; ++block) visit_block(block, sight.of_block(first_block + block));
    };
    __m512 highest = _mm512_set1_ps(highest_);
    visit([&](int64_t block, __mmask16 seen) {
      highest = _mm512_mask_max_ps(highest, seen, highest, _mm512_loadu_ps(scores + block * 256));
    });
    const float before = highest_;
    highest_ = _mm512_reduce_max_ps(highest);
    const __m512 scale = _mm512_set1_ps(log2_scale), offset = _mm512_set1_ps(highest_ * log2_scale);
    __m512 sum = _mm512_setzero_ps();
    visit([&](int64_t block, __mmask16 seen) {
      __m512 exponent = _mm512_fmsub_ps(_mm512_loadu_ps(scores + block * 256), scale, offset);
      __m512 weight = _mm512_maskz_mov_ps(seen, exp2_negative(exponent));
      sum = _mm512_add_ps(sum, weight);
      Narrow::store(weights + block * 256, weight);
    });
    const float keep = _mm512_cvtss_f32(exp2_negative(_mm512_set1_ps((before - highest_) * log2_scale)));
    total_ = total_ * keep + _mm512_reduce_add_ps(sum);
    return keep;
  }

  float total() const { return total_; }

 private:
  float highest_ = kNothing, total_ = 0.0f;
};

// Products::Narrow, see kv_reader.hpp
// Products::scores(queries, stride, num_queries, keys, num_blocks, lines, scores)
// Products::add_values(weights, num_queries, values, num_blocks, head_size, sums)
template <class Products>
void attend(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch) {
  const KvCache& cache = *layer.cache;
  const Span& span = *item.span;
  const int64_t head_size = cache.head_size(), lines = cache.key_lines();
  const int32_t* queries = layer.queries + (item.kv_head * layer.queries_per_kv_head +
                                            span.first_token * layer.group + item.first_query) * lines;
  Sight sights[kTileRows];
  for (int64_t row = 0; row < item.num_queries; ++row) {
    const int64_t position = span.start + (item.first_query + row) / layer.group;
    sights[row] = {layer.window == 0 ? 0 : std::max<int64_t>(position - layer.window + 1, 0), position};
  }
  const int64_t first_block = sights[0].first / kBlockTokens;
  const int64_t end_block = sights[item.num_queries - 1].last / kBlockTokens + 1;
  auto* scores = scratch.scores.as<float>();
  auto* weights = scratch.weights.as<uint16_t>();
  auto* sums = scratch.sums.as<float>();
  std::fill_n(sums, kTileRows * head_size, 0.0f);
  Softmax<typename Products::Narrow> softmaxes[kTileRows];
  const uint16_t *keys[AttentionScratch::kPieceBlocks], *values[AttentionScratch::kPieceBlocks];
  for (int64_t block = first_block; block < end_block;) {
    const int64_t piece_end =
        std::min(round_up(block + 1, AttentionScratch::kPieceBlocks), end_block), num_blocks = piece_end - block;
    read_blocks<typename Products::Narrow>(layer, item, scratch, block, num_blocks, keys, values);
    Products::scores(queries, lines, item.num_queries, keys, num_blocks, scores);
    for (int64_t row = 0; row < item.num_queries; ++row) {
      const float keep = softmaxes[row].add_piece(scores + row * kLanes, weights + row * kLanes, block, num_blocks,
                                                  sights[row], layer.scale * 1.44269504f);
      if (keep == 1.0f) continue;
      for (int64_t dim = 0; dim < head_size; dim += kLanes) {
        float* sum = sums + row * head_size + dim;
        _mm512_storeu_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(keep)));
      }
    }
    Products::add_values(weights, item.num_queries, values, num_blocks, head_size, sums);
    block = piece_end;
  }
  for (int64_t row = 0; row < item.num_queries; ++row) {
    const int64_t query = item.first_query + row;
    const int64_t token = span.first_token + query / layer.group;
    const int64_t head = item.kv_head * layer.group + query % layer.group;
    const __m512 factor = _mm512_set1_ps(1.0f / softmaxes[row].total());
    for (int64_t dim = 0; dim < head_size; dim += kLanes)
      layer.attended->store(token, (head * head_size + dim) / kLanes,
                            _mm512_mul_ps(_mm512_loadu_ps(sums + row * head_size + dim), factor));
  }
}

}  // namespace pagemesh
