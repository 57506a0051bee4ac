// Products of attention in AMX tiles: 16 queries against blocks of 16 keys or values.
#include "amx.hpp"
#include "attention_softmax.hpp"
#include "narrow_avx512_bf16.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kSumStride = kLanes * sizeof(float);

// Tiles 0-3 are sums, 4 queries, 5 keys, 6 weights (16 tokens), 7 values (8 pairs of tokens).
void configure_tiles() {
  amx::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile == 7 ? kBlockTokens / 2 : kTileRows;
    config.bytes_per_row[tile] = tile == 6 ? kBlockTokens * 2 : 64;
  }
  amx::configure(config);
}

template <int kSum>
void add_keys(const uint16_t* keys, int64_t line) {
  amx::load<5>(keys + line * 32, 64);
  amx::multiply_bf16<kSum, 4, 5>();
}

struct AmxProducts {
  using Narrow = NarrowByInstruction;

  static void scores(const int32_t* queries, int64_t lines, int64_t, const uint16_t* const* keys, int64_t num_blocks,
                     float* scores) {
    int64_t block = 0;
    for (; block + 4 <= num_blocks; block += 4) {
      amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
      for (int64_t line = 0; line < lines; line += kTileRows) {
        amx::load<4>(queries + line, lines * 4);
        add_keys<0>(keys[block], line), add_keys<1>(keys[block + 1], line);
        add_keys<2>(keys[block + 2], line), add_keys<3>(keys[block + 3], line);
      }
      float* out = scores + block * 256;
      amx::store<0>(out, kSumStride), amx::store<1>(out + 256, kSumStride);
      amx::store<2>(out + 512, kSumStride), amx::store<3>(out + 768, kSumStride);
    }
    for (; block < num_blocks; ++block) {
      amx::zero<0>();
      for (int64_t line = 0; line < lines; line += kTileRows) {
        amx::load<4>(queries + line, lines * 4);
        add_keys<0>(keys[block], line);
      }
      amx::store<0>(scores + block * 256, kSumStride);
    }
  }

  template <int kSum>
  static void add_dims(const uint16_t* values, int64_t head_size, int64_t dim) {
    amx::load<7>(values + dim * 2, head_size * 4);
    amx::multiply_bf16<kSum, 6, 7>();
  }

  static void add_values(const uint16_t* weights, int64_t, const uint16_t* const* values, int64_t num_blocks,
                         int64_t head_size, float* sums) {
    const int64_t stride = head_size * sizeof(float);
    int64_t dim = 0;
    for (; dim + 64 <= head_size; dim += 64) {
      float* sum = sums + dim;
      amx::load<0>(sum, stride), amx::load<1>(sum + 16, stride);
      amx::load<2>(sum + 32, stride), amx::load<3>(sum + 48, stride);
      for (int64_t block = 0; block < num_blocks; ++block) {
        amx::load<6>(weights + block * 256, kBlockTokens * 2);
        add_dims<0>(values[block], head_size, dim), add_dims<1>(values[block], head_size, dim + 16);
        add_dims<2>(values[block], head_size, dim + 32), add_dims<3>(values[block], head_size, dim + 48);
      }
      amx::store<0>(sum, stride), amx::store<1>(sum + 16, stride);
      amx::store<2>(sum + 32, stride), amx::store<3>(sum + 48, stride);
    }
    for (; dim < head_size; dim += 16) {
      amx::load<0>(sums + dim, stride);
      for (int64_t block = 0; block < num_blocks; ++block) {
        amx::load<6>(weights + block * 256, kBlockTokens * 2);
        add_dims<0>(values[block], head_size, dim);
      }
      amx::store<0>(sums + dim, stride);
    }
  }
};

}  // namespace

void attend_amx(const LayerAttention& layer, const AttentionItem& item, AttentionScratch& scratch) {
  configure_tiles();
  attend<AmxProducts>(layer, item, scratch);
}

}  // namespace pagemesh
