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

// The softmax of a tile of queries, one lane or row each. Four queries are walked together, since one alone would wait
// for its own sums. Only blocks at the ends of what they see need masks.
template <class Narrow>
class Softmax {
 public:
  explicit Softmax(float log2_scale) : log2_scale_(_mm512_set1_ps(log2_scale)) {}

  // Turns scores of blocks [first_block, + num_blocks) into weights; gives, for each query, what its earlier sums must
  // be multiplied with. `sights` and rows are there for a multiple of four queries.
  __m512 add_piece(const float* scores, uint16_t* weights, int64_t first_block, int64_t num_blocks,
                   const Sight* sights, int64_t num_queries) {
    alignas(64) float highest[kTileRows], offsets[kTileRows], sums[kTileRows] = {};
    _mm512_store_ps(highest, highest_);
    for (int64_t row = 0; row < num_queries; row += kTogether)
      raise(scores + row * AttentionScratch::kScoreStride, first_block, num_blocks, sights + row, highest + row);
    const __m512 before = highest_;
    highest_ = _mm512_load_ps(highest);
    _mm512_store_ps(offsets, _mm512_mul_ps(highest_, log2_scale_));
    for (int64_t row = 0; row < num_queries; row += kTogether)
      weigh(scores + row * AttentionScratch::kScoreStride, weights + row * AttentionScratch::kWeightStride, first_block,
            num_blocks, sights + row, offsets + row, sums + row);
    const __m512 keep = exp2_negative(_mm512_mul_ps(_mm512_sub_ps(before, highest_), log2_scale_));
    total_ = _mm512_fmadd_ps(total_, keep, _mm512_load_ps(sums));
    return keep;
  }

  __m512 total() const { return total_; }

 private:
  static constexpr int64_t kTogether = 4;

  // Calls visit(block, seen) with seen(row) for each block.
  template <class Visit>
  static void walk(int64_t first_block, int64_t num_blocks, const Sight* sights, Visit visit) {
    int64_t whole = 0, end = num_blocks;
    for (int64_t row = 0; row < kTogether; ++row) {
      whole = std::max(whole, ceil_div(sights[row].first, kBlockTokens) - first_block);
      end = std::min(end, (sights[row].last + 1) / kBlockTokens - first_block);
    }
    whole = std::min(whole, num_blocks), end = std::max(whole, end);
    auto visit_ends = [&](int64_t block) {
      visit(block, [&](int64_t row) { return sights[row].of_block(first_block + block); });
    };
    for (int64_t block = 0; block < whole; ++block) visit_ends(block);
    for (int64_t block = whole; block < end; ++block) visit(block, [](int64_t) { return __mmask16{0xffff}; });
    for (int64_t block = end; block < num_blocks; ++block) visit_ends(block);
  }

  static void raise(const float* scores, int64_t first_block, int64_t num_blocks, const Sight* sights,
                    float* highest) {
    __m512 lanes[kTogether];
    for (int64_t row = 0; row < kTogether; ++row) lanes[row] = _mm512_set1_ps(highest[row]);
    walk(first_block, num_blocks, sights, [&](int64_t block, auto seen) {
      const float* from = scores + block * kBlockTokens;
      for (int64_t row = 0; row < kTogether; ++row)
        lanes[row] = _mm512_mask_max_ps(lanes[row], seen(row), lanes[row],
                                        _mm512_loadu_ps(from + row * AttentionScratch::kScoreStride));
    });
    for (int64_t row = 0; row < kTogether; ++row) highest[row] = _mm512_reduce_max_ps(lanes[row]);
  }

  void weigh(const float* scores, uint16_t* weights, int64_t first_block, int64_t num_blocks, const Sight* sights,
             const float* offsets, float* sums) const {
    __m512 lanes[kTogether] = {};
    walk(first_block, num_blocks, sights, [&](int64_t block, auto seen) {
      const float* from = scores + block * kBlockTokens;
      uint16_t* to = weights + block * kBlockTokens;
      for (int64_t row = 0; row < kTogether; ++row) {
        const __m512 exponent = _mm512_fmsub_ps(_mm512_loadu_ps(from + row * AttentionScratch::kScoreStride),
                                                log2_scale_, _mm512_set1_ps(offsets[row]));
        const __m512 weight = _mm512_maskz_mov_ps(seen(row), exp2_negative(exponent));
        lanes[row] = _mm512_add_ps(lanes[row], weight);
        Narrow::store(to + row * AttentionScratch::kWeightStride, weight);
      }
    });
    for (int64_t row = 0; row < kTogether; ++row) sums[row] = _mm512_reduce_add_ps(lanes[row]);
  }

  __m512 log2_scale_, highest_ = _mm512_set1_ps(kNothing), total_ = _mm512_setzero_ps();
};

// Multiplies row r of [num_rows][head_size] with lane r.
inline void multiply_rows(float* rows, int64_t head_size, __m512 factors, int64_t num_rows) {
  alignas(64) float factor_of[kTileRows];
  _mm512_store_ps(factor_of, factors);
  for (int64_t row = 0; row < num_rows; ++row, rows += head_size)
    for (int64_t dim = 0; dim < head_size; dim += kLanes)
      _mm512_storeu_ps(rows + dim, _mm512_mul_ps(_mm512_loadu_ps(rows + dim), _mm512_set1_ps(factor_of[row])));
}

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
  for (int64_t row = 0; row < kTileRows; ++row) {  // lanes behind the last query see what it sees
    const int64_t query = item.first_query + std::min(row, item.num_queries - 1);
    const int64_t position = span.start + query / layer.group;
    sights[row] = {layer.window == 0 ? 0 : std::max<int64_t>(position - layer.window + 1, 0), position};
  }
  const int64_t first_block = sights[0].first / kBlockTokens;
  const int64_t end_block = sights[item.num_queries - 1].last / kBlockTokens + 1;
  auto* scores = scratch.scores.as<float>();
  auto* weights = scratch.weights.as<uint16_t>();
  auto* sums = scratch.sums.as<float>();
  std::fill_n(sums, kTileRows * head_size, 0.0f);
  Softmax<typename Products::Narrow> softmax(layer.scale * 1.44269504f);
  const uint16_t *keys[AttentionScratch::kPieceBlocks], *values[AttentionScratch::kPieceBlocks];
  for (int64_t block = first_block; block < end_block;) {
    const int64_t piece_end =
        std::min(round_up(block + 1, AttentionScratch::kPieceBlocks), end_block), num_blocks = piece_end - block;
    read_blocks<typename Products::Narrow>(layer, item, scratch, block, num_blocks, keys, values);
    Products::scores(queries, lines, item.num_queries, keys, num_blocks, scores);
    const __m512 keep = softmax.add_piece(scores, weights, block, num_blocks, sights, item.num_queries);
    if (block != first_block) multiply_rows(sums, head_size, keep, item.num_queries);
    Products::add_values(weights, item.num_queries, values, num_blocks, head_size, sums);
    block = piece_end;
  }
  const __m512 factors = _mm512_div_ps(_mm512_set1_ps(1.0f), softmax.total());
  multiply_rows(sums, head_size, factors, item.num_queries);
  for (int64_t row = 0; row < item.num_queries; ++row) {
    const int64_t query = item.first_query + row;
    const int64_t token = span.first_token + query / layer.group;
    const int64_t head = item.kv_head * layer.group + query % layer.group;
    for (int64_t dim = 0; dim < head_size; dim += kLanes)
      layer.attended->store(token, (head * head_size + dim) / kLanes, _mm512_loadu_ps(sums + row * head_size + dim));
  }
}

}  // namespace pagemesh
