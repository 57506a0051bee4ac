// One panel of 32 INT8 columns in vector registers: four operands of a row, broadcast, against 16 columns.
// Included by one file per instruction set, with its own Dot.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "linear_int8.hpp"
#include "weight_stream.hpp"

namespace pagemesh {

// Four operands of one half of a row in every lane.
inline __m512i broadcast_quad(const int8_t* quad) {
  int32_t four;
  std::memcpy(&four, quad, 4);
  return _mm512_set1_epi32(four);
}

// Dot::load(b) turns a line of the panel into the operand that Dot::add(sum, b, a) takes; Dot::excess(a, num_steps)
// is what it adds too much to each sum of a row's half, whose lines of 64 lie 2 KiB apart.
template <class Dot, int kRows>
void multiply_split_rows(const PanelTask& task, int64_t row_block, int64_t first_row, float* out) {
  __m512i high[kRows][2] = {}, low[kRows][2] = {};
  const Activations& input = *task.input;
  const char* b = task.linear->panel(task.panel);
  const WeightStream stream{b + task.linear->panel_bytes, task.next};
  const int64_t num_steps = num_split_steps(*task.linear);
  for (int64_t step = 0; step < num_steps; ++step, b += 2 * kTileBytes) {
    const int8_t* a = input.split_tile(row_block, step) + first_row * kSplitDepth;
    stream.prefetch(b, 2 * kTileBytes, 4 << 10);
    for (int64_t quad = 0; quad < kSplitDepth / 4; ++quad) {
      const auto left = Dot::load(b + quad * 64), right = Dot::load(b + kTileBytes + quad * 64);
      for (int row = 0; row < kRows; ++row) {
        const __m512i a_high = broadcast_quad(a + row * kSplitDepth + quad * 4);
        const __m512i a_low = broadcast_quad(a + kTileBytes + row * kSplitDepth + quad * 4);
        high[row][0] = Dot::add(high[row][0], left, a_high), high[row][1] = Dot::add(high[row][1], right, a_high);
        low[row][0] = Dot::add(low[row][0], left, a_low), low[row][1] = Dot::add(low[row][1], right, a_low);
      }
    }
  }
  const float* scales = task.linear->scales.as<float>() + task.panel * kPanelColumns;
  for (int row = 0; row < kRows; ++row) {
    const float scale = input.split_scale(row_block * kTileRows + first_row + row);
    const int8_t* a = input.split_tile(row_block, 0) + (first_row + row) * kSplitDepth;
    const __m512i high_excess = Dot::excess(a, num_steps), low_excess = Dot::excess(a + kTileBytes, num_steps);
    for (int side = 0; side < 2; ++side)
      _mm512_storeu_ps(out + row * kPanelColumns + side * kLanes,
                       combine_halves(_mm512_sub_epi32(high[row][side], high_excess),
                                      _mm512_sub_epi32(low[row][side], low_excess), scale, scales + side * kLanes));
  }
}

template <class Dot>
void multiply_int8_vector(const PanelTask& task) {
  constexpr int kRows = 4;
  for (int64_t block = task.first_row_block; block < task.first_row_block + task.num_row_blocks(); ++block) {
    alignas(64) float sums[kTileRows * kPanelColumns];
    for (int64_t row = 0; row < kTileRows; row += kRows)
      multiply_split_rows<Dot, kRows>(task, block, row, sums + row * kPanelColumns);
    (*task.finish)(block, sums);
  }
}

}  // namespace pagemesh
