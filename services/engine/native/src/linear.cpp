#include "linear.hpp"

#include <stdexcept>

namespace pagemesh {

int64_t source_row(const Linear& linear, int64_t panel, int64_t column) {
  if (linear.order == ColumnOrder::plain) {
    int64_t row = panel * kPanelColumns + column;
    return row < linear.out_size ? row : -1;
  }
  int64_t half = linear.out_size / 2, within = panel * kLanes + column % kLanes;
  if (within >= half) return -1;
  return column < kLanes ? within : half + within;
}

Linear outline_linear(Format format, ColumnOrder order, int64_t out_size, int64_t in_size, const float* bias) {
  Linear linear;
  linear.format = format;
  linear.order = order;
  linear.out_size = out_size;
  linear.in_size = in_size;
  linear.num_panels = order == ColumnOrder::plain ? ceil_div(out_size, kPanelColumns) : ceil_div(out_size / 2, kLanes);
  linear.num_k_steps = ceil_div(in_size, kTileDepth);
  linear.bias.assign(linear.num_panels * kPanelColumns, 0.0f);
  for (int64_t index = 0; bias != nullptr && index < linear.num_panels * kPanelColumns; ++index) {
    int64_t row = source_row(linear, index / kPanelColumns, index % kPanelColumns);
    if (row >= 0) linear.bias[index] = bias[row];
  }
  return linear;
}

// A panel is [k step][left, right][16 pairs along K][16 columns][2]: two tiles a step, in the order of reading.
Linear pack_bf16(ColumnOrder order, int64_t out_size, int64_t in_size, const uint16_t* weight, const float* bias) {
  Linear linear = outline_linear(Format::bf16, order, out_size, in_size, bias);
  linear.panel_bytes = linear.num_k_steps * 2 * kTileBytes;
  linear.weights = Buffer(linear.num_panels * linear.panel_bytes);
  for (int64_t panel = 0; panel < linear.num_panels; ++panel) {
    uint16_t* packed = linear.weights.as<uint16_t>() + panel * linear.panel_bytes / 2;
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      int64_t row = source_row(linear, panel, column);
      if (row < 0) continue;
      uint16_t* place = packed + column / kLanes * (kTileBytes / 2) + column % kLanes * 2;
      for (int64_t k = 0; k < in_size; ++k)
        place[k / kTileDepth * kTileBytes + k % kTileDepth / 2 * kTileDepth + k % 2] = weight[row * in_size + k];
    }
  }
  return linear;
}

FormatKernels kernels_of(Format format, KernelPath path) {
  switch (format) {
    case Format::int8: return int8_kernels(path);
    case Format::int4:
    case Format::int8_groups: return groups_kernels(path);
    case Format::bf16: break;
  }
  switch (path) {
    case KernelPath::amx: return {ActivationForm::bf16_tiles, multiply_bf16_amx, nullptr};
    case KernelPath::avx512_bf16: return {ActivationForm::bf16_tiles, multiply_bf16_avx512_bf16, nullptr};
    case KernelPath::avx512: return {ActivationForm::bf16_tiles, multiply_bf16_avx512, nullptr};
    case KernelPath::none: break;
  }
  throw std::invalid_argument("no kernel path");
}

}  // namespace pagemesh
