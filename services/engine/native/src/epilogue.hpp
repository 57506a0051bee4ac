// What becomes of the sums of a block of a panel: [num_rows][32] fp32, without the bias.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "activations.hpp"
#include "linear.hpp"
#include "vectors.hpp"

namespace pagemesh {

struct PanelSums {
  const float* sums;
  int64_t panel, first_row, num_rows;
  __m512 left_bias, right_bias;

  __m512 left(int64_t row) const {
    return _mm512_add_ps(_mm512_loadu_ps(sums + row * kPanelColumns), left_bias);
  }
  __m512 right(int64_t row) const {
    return _mm512_add_ps(_mm512_loadu_ps(sums + row * kPanelColumns + kLanes), right_bias);
  }
};

// y = sums
struct StoreRows {
  float* rows;
  int64_t stride;

  void operator()(const PanelSums& of) const {
    for (int64_t row = 0; row < of.num_rows; ++row) {
      float* to = rows + (of.first_row + row) * stride + of.panel * kPanelColumns;
      _mm512_storeu_ps(to, of.left(row));
      _mm512_storeu_ps(to + kLanes, of.right(row));
    }
  }
};

// y += sums
struct AddRows {
  float* rows;
  int64_t stride;

  void operator()(const PanelSums& of) const {
    for (int64_t row = 0; row < of.num_rows; ++row) {
      float* to = rows + (of.first_row + row) * stride + of.panel * kPanelColumns;
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), of.left(row)));
      _mm512_storeu_ps(to + kLanes, _mm512_add_ps(_mm512_loadu_ps(to + kLanes), of.right(row)));
    }
  }
};

// y = silu(gate) * up, of a panel in the order `gate_up`
struct GateRows {
  Activations* gated;

  void operator()(const PanelSums& of) const {
    for (int64_t row = 0; row < of.num_rows; ++row)
      gated->store(of.first_row + row, of.panel, _mm512_mul_ps(silu(of.left(row)), of.right(row)));
  }
};

}  // namespace pagemesh
