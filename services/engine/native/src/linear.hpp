// How a linear layer is represented, whatever the format of its weights, and what a format must bring.
//
// A format is: a packer (from the layer as torch holds it to panels of 32 output columns), the form of activations
// that it reads, and per kernel path a panel kernel. The rest of the step does not know formats.
//
// Law: the kernel sums each output element in one fixed order along K, whatever the number of rows and whichever
// rows stand beside it. Never split K between threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "activations.hpp"
#include "buffer.hpp"
#include "cpu.hpp"
#include "tiles.hpp"

namespace pagemesh {

// int8 has a scale per output column; the others one per group of 32 inputs.
enum class Format : int32_t { bf16 = 0, int8 = 1, int4 = 2, int8_groups = 3 };

// Which output columns make a panel. `gate_up`: 16 of the gate and the same 16 of the up projection, so that the
// product of the two needs nothing from another panel.
enum class ColumnOrder : int32_t { plain = 0, gate_up = 1 };

// y = x W^T + b.
struct Linear {
  Format format = Format::bf16;
  ColumnOrder order = ColumnOrder::plain;
  int64_t out_size = 0, in_size = 0;
  int64_t num_panels = 0, num_k_steps = 0;
  size_t panel_bytes = 0;
  Buffer weights;             // [panel][panel_bytes]: read from front to back
  Buffer scales;              // for formats that have them
  std::vector<float> bias;    // [panel][32], zeros where there is none

  int64_t num_bytes() const { return weights.size() + scales.size() + bias.size() * sizeof(float); }
  const char* panel(int64_t index) const { return weights.as<char>() + index * panel_bytes; }
};

// The row of W [out_size, in_size] behind a panel's column; -1 is padding.
int64_t source_row(const Linear& linear, int64_t panel, int64_t column);

// Takes the sums [16][32] fp32 of one row block, without the bias, while they are in L1.
using FinishBlock = std::function<void(int64_t row_block, const float* sums)>;

// One panel for consecutive rows.
struct PanelTask {
  const Linear* linear;
  const Activations* input;
  int64_t panel;
  int64_t first_row_block, num_rows;
  const char* next;  // what this thread will read next is prefetched; may be null
  float* waiting;    // [num_row_blocks() * 16][32]: where sums may wait
  const FinishBlock* finish;

  int64_t num_row_blocks() const { return ceil_div(num_rows, kTileRows); }
  // A product takes as many of the unit's cycles as its tile has rows.
  int64_t rows_per_tile() const { return num_rows < kTileRows ? num_rows : kTileRows; }
};

using PanelKernel = void (*)(const PanelTask&);

// Turns rows of fp32 activations into what the panel kernel reads, kept beside them.
using PrepareKernel = void (*)(const Activations&, int64_t first_row, int64_t num_rows);

struct FormatKernels {
  ActivationForm form;
  PanelKernel multiply;
  PrepareKernel prepare;        // null if activations are used as they were stored
  bool unpacks_panels = false;  // once for all rows of a task, so a task should have many
};

FormatKernels kernels_of(Format format, KernelPath path);

// Packs W [out_size, in_size] given row by row as bf16, and b [out_size] fp32 or null.
Linear pack_bf16(ColumnOrder order, int64_t out_size, int64_t in_size, const uint16_t* weight, const float* bias);

// Packs codes [out_size, in_size] with a scale per row; see services/engine/quantization/rows.py.
Linear pack_int8(ColumnOrder order, int64_t out_size, int64_t in_size, const int8_t* codes, const float* scales,
                 const float* bias);
FormatKernels int8_kernels(KernelPath path);

// Packs codes [out_size, in_size] (unsigned 4-bit ones, or signed bytes) with float16 scales, and for int4 minima,
// [out_size, in_size / 32]; see services/engine/quantization/groups.py.
Linear pack_groups(Format format, ColumnOrder order, int64_t out_size, int64_t in_size, const uint8_t* codes,
                   const uint16_t* scales, const uint16_t* minima, const float* bias);
FormatKernels groups_kernels(KernelPath path);

// Fills what all formats share: sizes, panels, bias.
Linear outline_linear(Format format, ColumnOrder order, int64_t out_size, int64_t in_size, const float* bias);

// Panel kernels of bf16 weights, one a file.
void multiply_bf16_amx(const PanelTask& task);
void multiply_bf16_avx512_bf16(const PanelTask& task);
void multiply_bf16_avx512(const PanelTask& task);

}  // namespace pagemesh
