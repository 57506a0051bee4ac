// INT8 weights with one scale per output column: how they are packed, and which kernel reads them.
#include <stdexcept>

#include "linear_int8.hpp"
#include "split_rows.hpp"

namespace pagemesh {
namespace {

constexpr int64_t kMaxInSize = (int64_t{1} << 31) / (127 * 127);  // sums of products stay in 32 bits

void prepare_int8(const Activations& activations, int64_t first_row, int64_t num_rows) {
  for (int64_t row = first_row; row < first_row + num_rows; ++row) split_row(activations, row);
}

}  // namespace

// A panel is [step of 64 along K][left, right][16 quads along K][16 columns][4].
Linear pack_int8(ColumnOrder order, int64_t out_size, int64_t in_size, const int8_t* codes, const float* scales,
                 const float* bias) {
  if (in_size > kMaxInSize) throw std::invalid_argument("int8 weights: too many inputs for exact 32-bit sums");
  Linear linear = outline_linear(Format::int8, order, out_size, in_size, bias);
  linear.panel_bytes = num_split_steps(linear) * 2 * kTileBytes;
  linear.weights = Buffer(linear.num_panels * linear.panel_bytes);
  linear.scales = Buffer(linear.num_panels * kPanelColumns * sizeof(float));
  for (int64_t panel = 0; panel < linear.num_panels; ++panel)
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      const int64_t row = source_row(linear, panel, column);
      if (row < 0) continue;
      linear.scales.as<float>()[panel * kPanelColumns + column] = scales[row];
      int8_t* place = linear.weights.as<int8_t>() + panel * linear.panel_bytes + column / kLanes * kTileBytes +
                      column % kLanes * 4;
      for (int64_t k = 0; k < in_size; ++k)
        place[k / kSplitDepth * 2 * kTileBytes + k % kSplitDepth / 4 * 64 + k % 4] = codes[row * in_size + k];
    }
  return linear;
}

FormatKernels int8_kernels(KernelPath path) {
  switch (path) {
    case KernelPath::amx: return {ActivationForm::fp32_rows, multiply_int8_amx, prepare_int8};
    case KernelPath::avx512_bf16: return {ActivationForm::fp32_rows, multiply_int8_avx512_vnni, prepare_int8};
    case KernelPath::avx512: return {ActivationForm::fp32_rows, multiply_int8_avx512, prepare_int8};
    case KernelPath::none: break;
  }
  throw std::invalid_argument("no kernel path");
}

}  // namespace pagemesh
