#include "linear_groups.hpp"

#include <stdexcept>

namespace pagemesh {
namespace {

// Where a code stands among a group's 1,024: see GroupLayout.
int64_t code_index(int64_t column, int64_t k) {
  const int64_t tile = column / kLanes, half = column % kLanes / 8;
  return ((tile * 16 + k / 2) * 2 + half) * 16 + column % 8 * 2 + k % 2;
}

// Sixty-four bytes hold eight vectors of 16 codes: byte group b of vector v is nibble v of lane b, so that a shift of
// the whole register brings the next vector.
void place_nibble(uint8_t* codes, int64_t index, uint8_t code) {
  const int64_t lane = index % 16, vector = index / 16 % 8, line = index / 128;
  codes[line * 64 + lane * 4 + vector / 2] |= static_cast<uint8_t>(code << vector % 2 * 4);
}

void pack_column(const Linear& linear, char* panel, int64_t column, const uint8_t* codes, const uint16_t* scales,
                 const uint16_t* minima) {
  const GroupLayout layout = layout_of(linear);
  for (int64_t group = 0; group < linear.num_k_steps; ++group) {
    char* place = panel + group * layout.num_bytes();
    reinterpret_cast<uint16_t*>(place)[column] = scales[group];
    if (layout.bits == 4) reinterpret_cast<uint16_t*>(place)[kPanelColumns + column] = minima[group];
    auto* packed = reinterpret_cast<uint8_t*>(place + layout.codes_begin());
    for (int64_t k = 0; k < kTileDepth; ++k) {
      const uint8_t code = codes[group * kTileDepth + k];
      if (layout.bits == 4)
        place_nibble(packed, code_index(column, k), code);
      else
        packed[code_index(column, k)] = code;
    }
  }
}

}  // namespace

Linear pack_groups(Format format, ColumnOrder order, int64_t out_size, int64_t in_size, const uint8_t* codes,
                   const uint16_t* scales, const uint16_t* minima, const float* bias) {
  if (in_size % kTileDepth != 0) throw std::invalid_argument("weights in groups need inputs of a multiple of 32");
  Linear linear = outline_linear(format, order, out_size, in_size, bias);
  linear.panel_bytes = linear.num_k_steps * layout_of(linear).num_bytes();
  linear.weights = Buffer(linear.num_panels * linear.panel_bytes);
  for (int64_t panel = 0; panel < linear.num_panels; ++panel)
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      const int64_t row = source_row(linear, panel, column);
      if (row < 0) continue;
      const int64_t first_group = row * linear.num_k_steps;
      pack_column(linear, linear.weights.as<char>() + panel * linear.panel_bytes, column, codes + row * in_size,
                  scales + first_group, minima == nullptr ? nullptr : minima + first_group);
    }
  return linear;
}

FormatKernels groups_kernels(KernelPath path) {
  switch (path) {
    case KernelPath::amx:
      return {ActivationForm::bf16_tiles, multiply_groups_amx, nullptr, true};
    case KernelPath::avx512_bf16:
      return {ActivationForm::bf16_tiles, multiply_unpacked<multiply_bf16_avx512_bf16, unpack_groups_avx512_bf16>, nullptr, true};
    case KernelPath::avx512:
      return {ActivationForm::bf16_tiles, multiply_unpacked<multiply_bf16_avx512, unpack_groups_avx512>, nullptr, true};
    case KernelPath::none: break;
  }
  throw std::invalid_argument("no kernel path");
}

}  // namespace pagemesh
