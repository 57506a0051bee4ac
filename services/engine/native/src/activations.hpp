// What a linear layer reads: the rows of a step, laid out as its kernel wants them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "buffer.hpp"
#include "tiles.hpp"
#include "vectors.hpp"

namespace pagemesh {

enum class ActivationForm : int32_t {
  bf16_tiles = 0,  // [row block][k step][16 rows][32] bf16, which AMX loads as it is
  fp32_rows = 1,   // [row][in_size padded to 64] fp32, and beside them what split_rows.hpp makes of whole rows
};

class Activations {
 public:
  Activations() = default;
  Activations(int64_t in_size, ActivationForm form) : num_k_steps_(ceil_div(in_size, kTileDepth)), form_(form) {}

  // Makes room; columns beyond in_size are zero and stay so.
  void reserve(int64_t num_rows) {
    if (num_rows <= capacity_) return;
    capacity_ = round_up(num_rows, 2 * kTileRows);
    if (form_ == ActivationForm::bf16_tiles) {
      buffer_ = Buffer(capacity_ * num_k_steps_ * kTileDepth * 2);
    } else {
      buffer_ = Buffer(capacity_ * split_size() * sizeof(float));
      split_ = Buffer(capacity_ * split_size() * 2);
      split_scales_ = Buffer(capacity_ * sizeof(float));
    }
  }

  // Stores columns [16 * column16, + 16) of a row.
  void store(int64_t row, int64_t column16, __m512 values) {
    if (form_ == ActivationForm::fp32_rows) {
      _mm512_storeu_ps(row_of(row) + column16 * kLanes, values);
    } else {
      uint16_t* line = tile(row / kTileRows, column16 / 2) + row % kTileRows * kTileDepth;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + column16 % 2 * kLanes), to_bf16(values));
    }
  }

  // [16][32] bf16; the tiles of one row block lie one after the other.
  uint16_t* tile(int64_t row_block, int64_t k_step) const {
    return buffer_.as<uint16_t>() + (row_block * num_k_steps_ + k_step) * kTileRows * kTileDepth;
  }
  float* row_of(int64_t row) const { return buffer_.as<float>() + row * split_size(); }
  // [high, low][16][64] int8; the pairs of tiles of one row block lie one after the other.
  int8_t* split_tile(int64_t row_block, int64_t split_step) const {
    return split_.as<int8_t>() + row_block * split_size() * 2 * kTileRows + split_step * 2 * kTileBytes;
  }
  float& split_scale(int64_t row) const { return split_scales_.as<float>()[row]; }
  int64_t split_size() const { return round_up(num_k_steps_ * kTileDepth, kSplitDepth); }
  int64_t num_bytes() const { return buffer_.size() + split_.size() + split_scales_.size(); }
  int64_t num_k_steps() const { return num_k_steps_; }
  ActivationForm form() const { return form_; }

 private:
  int64_t num_k_steps_ = 0, capacity_ = 0;
  ActivationForm form_ = ActivationForm::bf16_tiles;
  Buffer buffer_, split_, split_scales_;
};

}  // namespace pagemesh
