// The C interface to linear layers alone: packed from arrays that are copied, given to a model, or applied to rows.
#include <algorithm>
#include <stdexcept>

#include "abi_guard.hpp"
#include "linear.hpp"

using namespace pagemesh;

namespace {

// Runs `pack` and gives what it made to the caller, or null.
template <class Pack>
Linear* give(Pack pack) {
  Linear* made = nullptr;
  guard([&] { made = new Linear(pack()); });
  return made;
}

void store_rows(Activations& input, const float* rows, int64_t num_rows, int64_t in_size) {
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t column = 0; column < in_size; column += kLanes) {
      const int64_t left = std::min<int64_t>(in_size - column, kLanes);
      const auto within = static_cast<__mmask16>((1u << left) - 1);
      input.store(row, column / kLanes, _mm512_maskz_loadu_ps(within, rows + row * in_size + column));
    }
}

}  // namespace

extern "C" {

const char* pagemesh_last_error() { return last_error.c_str(); }

// W [out_size][in_size] bf16; `bias` [out_size] fp32 or null.
Linear* pagemesh_pack_bf16(int32_t order, int64_t out_size, int64_t in_size, const uint16_t* weight, const float* bias) {
  return give([&] { return pack_bf16(static_cast<ColumnOrder>(order), out_size, in_size, weight, bias); });
}

// Codes [out_size][in_size], a scale per row.
Linear* pagemesh_pack_int8(int32_t order, int64_t out_size, int64_t in_size, const int8_t* codes, const float* scales,
                           const float* bias) {
  return give([&] { return pack_int8(static_cast<ColumnOrder>(order), out_size, in_size, codes, scales, bias); });
}

// `bits` 4 or 8: codes [out_size][in_size], float16 scales and, for 4 bits, minima [out_size][in_size / 32].
Linear* pagemesh_pack_groups(int32_t order, int64_t out_size, int64_t in_size, int32_t bits, const uint8_t* codes,
                             const uint16_t* scales, const uint16_t* minima, const float* bias) {
  const Format format = bits == 4 ? Format::int4 : Format::int8_groups;
  return give([&] {
    return pack_groups(format, static_cast<ColumnOrder>(order), out_size, in_size, codes, scales, minima, bias);
  });
}

void pagemesh_free_linear(Linear* linear) { delete linear; }

// out [num_rows][padded columns]: panels side by side, without the bias. One thread.
int32_t pagemesh_apply(const Linear* linear, int32_t path, const float* rows, int64_t num_rows, float* out) {
  return guard([&] {
    if (!is_usable(static_cast<KernelPath>(path))) throw std::invalid_argument("this kernel path is not usable here");
    const FormatKernels kernels = kernels_of(linear->format, static_cast<KernelPath>(path));
    Activations input(linear->in_size, kernels.form);
    input.reserve(num_rows);
    store_rows(input, rows, num_rows, linear->in_size);
    if (kernels.prepare != nullptr) kernels.prepare(input, 0, num_rows);
    const int64_t num_blocks = ceil_div(num_rows, kTileRows), stride = linear->num_panels * kPanelColumns;
    std::vector<float> waiting(num_blocks * kTileRows * kPanelColumns);
    for (int64_t panel = 0; panel < linear->num_panels; ++panel) {
      const FinishBlock finish = [&](int64_t row_block, const float* sums) {
        const int64_t first_row = row_block * kTileRows, count = std::min(kTileRows, num_rows - first_row);
        for (int64_t row = 0; row < count; ++row)
          std::copy_n(sums + row * kPanelColumns, kPanelColumns,
                      out + (first_row + row) * stride + panel * kPanelColumns);
      };
      kernels.multiply({linear, &input, panel, 0, num_rows, nullptr, waiting.data(), &finish});
    }
  });
}

}  // extern "C"
