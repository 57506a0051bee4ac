// One panel of 32 columns in AMX tiles: two tiles of columns against one or two tiles of rows.
#include <immintrin.h>

#include <algorithm>

#include "amx.hpp"
#include "linear.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kStepBytes = 2 * kTileBytes;
constexpr int64_t kStepsPerPass = 16;  // of the panel, so that 32 KiB of it stay in L1 while rows pass by
constexpr int64_t kAheadBytes = 8 << 10;
constexpr int64_t kOutStride = kPanelColumns * sizeof(float);

void configure_tiles() {
  amx::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kTileRows;
    config.bytes_per_row[tile] = 64;
  }
  amx::configure(config);
}

// Where the stream of weights goes on behind the panel's end.
struct Stream {
  const char *end, *next;

  void prefetch(const char* step) const {
    const char* ahead = step + kAheadBytes;
    if (ahead >= end) {
      if (next == nullptr) return;
      ahead = next + (ahead - end);
    }
    for (int64_t offset = 0; offset < kStepBytes; offset += 64) _mm_prefetch(ahead + offset, _MM_HINT_T0);
  }
};

// Adds steps [first, last) of the panel to one (kRows = 1) or two blocks of 16 rows. `a` are the first step's tiles.
template <int kRows, bool kPrefetch>
void add_steps(const char* a, int64_t a_row_block_bytes, const char* b, int64_t num_steps, bool is_first, float* out,
               const Stream& stream) {
  float* lower = out + kTileRows * kPanelColumns;
  if (is_first) {
    amx::zero<0>(), amx::zero<1>();
    if constexpr (kRows == 2) amx::zero<2>(), amx::zero<3>();
  } else {
    amx::load<0>(out, kOutStride), amx::load<1>(out + kTileRows, kOutStride);
    if constexpr (kRows == 2) amx::load<2>(lower, kOutStride), amx::load<3>(lower + kTileRows, kOutStride);
  }
  for (int64_t step = 0; step < num_steps; ++step, a += kTileBytes, b += kStepBytes) {
    if constexpr (kPrefetch) stream.prefetch(b);
    amx::load<4>(a, 64);
    amx::load<6>(b, 64);
    amx::multiply_bf16<0, 4, 6>();
    amx::load<7>(b + kTileBytes, 64);
    amx::multiply_bf16<1, 4, 7>();
    if constexpr (kRows == 2) {
      amx::load<5>(a + a_row_block_bytes, 64);
      amx::multiply_bf16<2, 5, 6>();
      amx::multiply_bf16<3, 5, 7>();
    }
  }
  amx::store<0>(out, kOutStride), amx::store<1>(out + kTileRows, kOutStride);
  if constexpr (kRows == 2) amx::store<2>(lower, kOutStride), amx::store<3>(lower + kTileRows, kOutStride);
}

}  // namespace

void multiply_bf16_amx(const PanelTask& task) {
  configure_tiles();
  const int64_t num_steps = task.linear->num_k_steps, a_row_block_bytes = num_steps * kTileBytes;
  const char* panel = task.linear->panel(task.panel);
  const Stream stream{panel + task.linear->panel_bytes, task.next};
  for (int64_t first = 0; first < num_steps; first += kStepsPerPass) {
    const int64_t count = std::min(kStepsPerPass, num_steps - first);
    const char* b = panel + first * kStepBytes;
    for (int64_t block = 0; block < task.num_row_blocks; block += 2) {
      const char* a = reinterpret_cast<const char*>(task.input->tile(task.first_row_block + block, first));
      float* out = task.out + block * kTileRows * kPanelColumns;
      auto add = block + 1 < task.num_row_blocks ? (block == 0 ? add_steps<2, true> : add_steps<2, false>)
                                                 : (block == 0 ? add_steps<1, true> : add_steps<1, false>);
      add(a, a_row_block_bytes, b, count, first == 0, out, stream);
    }
  }
}

}  // namespace pagemesh
