// One panel in groups for few rows: the tiles of a step are made while those of the step before are multiplied, and
// never leave L1. Sums run in the order of multiply_bf16_amx, so both give the same bits.
#include <immintrin.h>

#include <algorithm>

#include "amx.hpp"
#include "linear_groups.hpp"
#include "narrow_avx512_bf16.hpp"
#include "unpack_groups.hpp"

namespace pagemesh {
namespace {

struct Narrow : NarrowByInstruction {};  // a type of this file, so that the linker keeps its code apart

constexpr int64_t kFewBlocks = 2;
constexpr int64_t kOutStride = kPanelColumns * sizeof(float);

void configure_tiles(int64_t num_rows) {
  amx::TileConfig config;
  for (int tile = 0; tile < 6; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(tile == 5 ? kTileRows : num_rows);
    config.bytes_per_row[tile] = 64;
  }
  amx::configure(config);
}

// Tiles 0-3 are sums [block][left, right], 4 rows, 5 weights.
template <int kBlocks>
void add_step(const uint16_t* const* a, int64_t step, const uint16_t* weights) {
  const int64_t offset = step * kTileRows * kTileDepth;
  amx::load<4>(a[0] + offset, 64);
  amx::load<5>(weights, 64);
  amx::multiply_bf16<0, 4, 5>();
  amx::load<5>(weights + kTileBytes / 2, 64);
  amx::multiply_bf16<1, 4, 5>();
  if constexpr (kBlocks == 2) {
    amx::load<4>(a[1] + offset, 64);
    amx::multiply_bf16<3, 4, 5>();
    amx::load<5>(weights, 64);
    amx::multiply_bf16<2, 4, 5>();
  }
}

template <int kBlocks>
void multiply_few(const PanelTask& task) {
  alignas(64) uint16_t tiles[2][kTileBytes];  // of two steps
  const uint16_t* a[2];
  for (int block = 0; block < kBlocks; ++block) a[block] = task.input->tile(task.first_row_block + block, 0);
  amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
  const Linear& linear = *task.linear;
  const GroupLayout layout = layout_of(linear);
  const char* group = linear.panel(task.panel);
  const WeightStream stream{group + linear.panel_bytes, task.next};
  for (int64_t step = 0; step < linear.num_k_steps; ++step, group += layout.num_bytes()) {
    stream.prefetch(group, layout.num_bytes(), kGroupsAhead);
    unpack_step<Narrow>(layout, group, tiles[step % 2]);
    if (step > 0) add_step<kBlocks>(a, step - 1, tiles[(step - 1) % 2]);
  }
  add_step<kBlocks>(a, linear.num_k_steps - 1, tiles[(linear.num_k_steps - 1) % 2]);
  alignas(64) float sums[kBlocks][kTileRows * kPanelColumns];
  amx::store<0>(sums[0], kOutStride), amx::store<1>(sums[0] + kLanes, kOutStride);
  if constexpr (kBlocks == 2) amx::store<2>(sums[1], kOutStride), amx::store<3>(sums[1] + kLanes, kOutStride);
  for (int block = 0; block < kBlocks; ++block) (*task.finish)(task.first_row_block + block, sums[block]);
}

}  // namespace

void multiply_groups_amx(const PanelTask& task) {
  if (task.num_row_blocks() > kFewBlocks) return multiply_unpacked<multiply_bf16_amx, unpack_groups_avx512_bf16>(task);
  configure_tiles(task.rows_per_tile());
  task.num_row_blocks() == 1 ? multiply_few<1>(task) : multiply_few<2>(task);
}

}  // namespace pagemesh
