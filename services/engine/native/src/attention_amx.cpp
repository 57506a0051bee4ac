// Products of attention in AMX tiles: 16 queries against blocks of 16 keys or values.
#include "amx.hpp"
#include "attention_softmax.hpp"
#include "narrow_avx512_bf16.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kScoreStride = AttentionScratch::kScoreStride * sizeof(float);
constexpr int64_t kWeightStride = AttentionScratch::kWeightStride * 2;

// Tiles 0 and 1 are sums, 2 queries, 3 keys, 4 weights (16 tokens), 5 values (8 pairs of tokens); few are in use at a
// time, as in gemm_amx.cpp.
void configure_tiles(int64_t num_queries) {
  amx::TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {
    const int64_t rows = tile == 5 ? kBlockTokens / 2 : tile == 3 ? kTileRows : num_queries;
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.bytes_per_row[tile] = tile == 4 ? kBlockTokens * 2 : 64;
  }
  amx::configure(config);
}

// Adds 16 pairs of dims of two blocks.
template <int kSum>
void add_keys(const uint16_t* keys, int64_t line) {
  amx::load<3>(keys + line * 32, 64);
  amx::multiply_bf16<kSum, 2, 3>();
}

// Adds a block's 16 dims of values.
template <int kSum>
void add_dims(const uint16_t* values, int64_t head_size, int64_t dim) {
  amx::load<5>(values + dim * 2, head_size * 4);
  amx::multiply_bf16<kSum, 4, 5>();
}

struct AmxProducts {
  using Narrow = NarrowByInstruction;

  static void scores(const int32_t* queries, int64_t lines, int64_t, const uint16_t* const* keys, int64_t num_blocks,
                     float* scores) {
    for (int64_t block = 0; block < num_blocks; block += 2) {
      const bool is_pair = block + 1 < num_blocks;
      amx::zero<0>(), amx::zero<1>();
      for (int64_t line = 0; line < lines; line += kTileRows) {
        amx::load<2>(queries + line, lines * 4);
        add_keys<0>(keys[block], line);
        if (is_pair) add_keys<1>(keys[block + 1], line);
      }
      amx::store<0>(scores + block * kBlockTokens, kScoreStride);
      if (is_pair) amx::store<1>(scores + (block + 1) * kBlockTokens, kScoreStride);
    }
  }

  static void add_values(const uint16_t* weights, int64_t, const uint16_t* const* values, int64_t num_blocks,
                         int64_t head_size, float* sums) {
    const int64_t stride = head_size * sizeof(float);
    amx::zero<2>(), amx::zero<3>();  // what holds nothing takes no register from the loads that run ahead
    for (int64_t dim = 0; dim < head_size; dim += 32) {
      const bool is_pair = dim + 16 < head_size;
      amx::load<0>(sums + dim, stride);
      if (is_pair) amx::load<1>(sums + dim + 16, stride);
      for (int64_t block = 0; block < num_blocks; ++block) {
        amx::load<4>(weights + block * kBlockTokens, kWeightStride);
        add_dims<0>(values[block], head_size, dim);
        if (is_pair) add_dims<1>(values[block], head_size, dim + 16);
      }
      amx::store<0>(sums + dim, stride);
      if (is_pair) amx::store<1>(sums + dim + 16, stride);
    }
  }
};

}  // namespace

void attend_amx(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch) {
  configure_tiles(item.num_queries);
  attend<AmxProducts>(layer, item, scratch);
}

}  // namespace pagemesh
