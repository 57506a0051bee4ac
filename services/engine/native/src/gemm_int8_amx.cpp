// One panel of 32 INT8 columns in AMX tiles: a tile of columns against the high and the low half of 16 rows.
#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "amx.hpp"
#include "linear_int8.hpp"
#include "weight_stream.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kStepBytes = 2 * kTileBytes;
constexpr int64_t kStepsPerPass = 12;  // of the panel, so that 24 KiB of it stay in L1 while rows pass by
constexpr int64_t kAheadBytes = 8 << 10;
constexpr int64_t kSumsPerBlock = 4 * 256;  // [high left, high right, low left, low right][16 rows][16 columns]

void configure_tiles(int64_t num_rows) {
  amx::TileConfig config;
  for (int tile = 0; tile < 4; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(tile == 3 ? kTileRows : num_rows);
    config.bytes_per_row[tile] = 64;
  }
  amx::configure(config);
}

// Adds steps of 16 columns of the panel; in four tiles, as in gemm_amx.cpp.
template <bool kPrefetch>
void add_steps(const int8_t* a, const char* b, int64_t num_steps, bool is_first, int32_t* sums,
               const WeightStream& stream) {
  int32_t *high = sums, *low = sums + 512;
  if (is_first) {
    amx::zero<0>(), amx::zero<1>();
  } else {
    amx::load<0>(high, 64), amx::load<1>(low, 64);
  }
  for (int64_t step = 0; step < num_steps; ++step, a += kStepBytes, b += kStepBytes) {
    if constexpr (kPrefetch) stream.prefetch(b, kStepBytes, kAheadBytes);
    amx::load<3>(b, 64);
    amx::load<2>(a, 64);
    amx::multiply_int8<0, 2, 3>();
    amx::load<2>(a + kTileBytes, 64);
    amx::multiply_int8<1, 2, 3>();
  }
  amx::store<0>(high, 64), amx::store<1>(low, 64);
}

void finish_block(const PanelTask& task, int64_t row_block, const int32_t* sums) {
  const float* scales = task.linear->scales.as<float>() + task.panel * kPanelColumns;
  alignas(64) float finished[kTileRows * kPanelColumns];
  float* out = finished;
  for (int64_t row = 0; row < task.rows_per_tile(); ++row, sums += kLanes, out += kPanelColumns) {
    const float scale = task.input->split_scale(row_block * kTileRows + row);
    _mm512_storeu_ps(out, combine_halves(_mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 512), scale, scales));
    _mm512_storeu_ps(out + kLanes, combine_halves(_mm512_loadu_si512(sums + 256), _mm512_loadu_si512(sums + 768),
                                                  scale, scales + kLanes));
  }
  (*task.finish)(row_block, finished);
}

}  // namespace

void multiply_int8_amx(const PanelTask& task) {
  thread_local std::vector<int32_t> all_sums;
  if (const size_t needed = task.num_row_blocks() * kSumsPerBlock; all_sums.size() < needed) all_sums.resize(needed);
  configure_tiles(task.rows_per_tile());
  const int64_t num_steps = num_split_steps(*task.linear);
  const char* panel = task.linear->panel(task.panel);
  const WeightStream stream{panel + task.linear->panel_bytes, task.next};
  for (int64_t first = 0; first < num_steps; first += kStepsPerPass) {
    const int64_t count = std::min(kStepsPerPass, num_steps - first);
    for (int64_t block = 0; block < task.num_row_blocks(); ++block) {
      const int8_t* a = task.input->split_tile(task.first_row_block + block, first);
      int32_t* sums = all_sums.data() + block * kSumsPerBlock;
      const char* b = panel + first * kStepBytes;
      (block == 0 ? add_steps<true> : add_steps<false>)(a, b, count, first == 0, sums, stream);
      add_steps<false>(a, b + kTileBytes, count, first == 0, sums + 256, stream);
      if (first + count == num_steps) finish_block(task, task.first_row_block + block, sums);
    }
  }
}

}  // namespace pagemesh
