// One panel of 32 columns in vector registers: a pair of operands of a row, broadcast, against 16 columns.
// Included by one file per instruction set, with its own Dot.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "linear.hpp"

namespace pagemesh {

// Dot::add(sum, a, b): sum[lane] += a[2 lane] * b[2 lane] + a[2 lane + 1] * b[2 lane + 1], in an order of its own.
template <class Dot, int kRows>
void multiply_rows(const uint16_t* a, int64_t num_steps, const char* panel, const char* next, float* out) {
  __m512 left[kRows], right[kRows];
  for (int row = 0; row < kRows; ++row) left[row] = right[row] = _mm512_setzero_ps();
  const char* end = panel + num_steps * 2 * kTileBytes;
  for (int64_t step = 0; step < num_steps; ++step, a += kTileRows * kTileDepth, panel += 2 * kTileBytes) {
    for (int64_t pair = 0; pair < kTileDepth / 2; ++pair) {
      const char* b = panel + pair * 64;
      const char* ahead = b + (4 << 10);
      if (ahead >= end && next != nullptr) ahead = next + (ahead - end);
      _mm_prefetch(ahead, _MM_HINT_T0);
      _mm_prefetch(ahead + kTileBytes, _MM_HINT_T0);
      __m512i b_left = _mm512_loadu_si512(b), b_right = _mm512_loadu_si512(b + kTileBytes);
      for (int row = 0; row < kRows; ++row) {
        __m512i both = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(a + row * kTileDepth)[pair]);
        left[row] = Dot::add(left[row], both, b_left);
        right[row] = Dot::add(right[row], both, b_right);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    _mm512_storeu_ps(out + row * kPanelColumns, left[row]);
    _mm512_storeu_ps(out + row * kPanelColumns + kLanes, right[row]);
  }
}

// Rows beyond the step's last are zeros or left over; what they give is not used.
template <class Dot>
void multiply_bf16_vector(const PanelTask& task) {
  constexpr int kRows = 8;
  const char* panel = task.linear->panel(task.panel);
  for (int64_t block = 0; block < task.num_row_blocks(); ++block) {
    const uint16_t* a = task.input->tile(task.first_row_block + block, 0);
    alignas(64) float sums[kTileRows * kPanelColumns];
    for (int64_t row = 0; row < kTileRows; row += kRows)
      multiply_rows<Dot, kRows>(a + row * kTileDepth, task.linear->num_k_steps, panel, task.next,
                                sums + row * kPanelColumns);
    (*task.finish)(task.first_row_block + block, sums);
  }
}

}  // namespace pagemesh
