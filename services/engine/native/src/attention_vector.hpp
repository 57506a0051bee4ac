// Products of attention in vector registers. Included by one file per instruction set, with its own Dot.
#pragma once

#include "attention_softmax.hpp"

namespace pagemesh {

template <class Dot, class NarrowFloats>
struct VectorProducts {
  using Narrow = NarrowFloats;

  static void scores(const int32_t* queries, int64_t lines, int64_t num_queries, const uint16_t* const* keys,
                     int64_t num_blocks, float* scores) {
    for (int64_t block = 0; block < num_blocks; ++block)
      for (int64_t row = 0; row < num_queries; ++row) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t line = 0; line < lines; ++line)
          sum = Dot::add(sum, _mm512_set1_epi32(queries[row * lines + line]),
                         _mm512_loadu_si512(keys[block] + line * 32));
        _mm512_storeu_ps(scores + row * AttentionScratch::kScoreStride + block * kBlockTokens, sum);
      }
  }

  static void add_values(const uint16_t* weights, int64_t num_queries, const uint16_t* const* values,
                         int64_t num_blocks, int64_t head_size, float* sums) {
    for (int64_t row = 0; row < num_queries; ++row)
      for (int64_t dim = 0; dim < head_size; dim += kLanes) {
        __m512 sum = _mm512_loadu_ps(sums + row * head_size + dim);
        for (int64_t block = 0; block < num_blocks; ++block) {
          const auto* pairs = reinterpret_cast<const int32_t*>(weights + row * AttentionScratch::kWeightStride) +
                                block * (kBlockTokens / 2);
          for (int64_t pair = 0; pair < kBlockTokens / 2; ++pair)
            sum = Dot::add(sum, _mm512_set1_epi32(pairs[pair]),
                           _mm512_loadu_si512(values[block] + (pair * head_size + dim) * 2));
        }
        _mm512_storeu_ps(sums + row * head_size + dim, sum);
      }
  }
};

}  // namespace pagemesh
