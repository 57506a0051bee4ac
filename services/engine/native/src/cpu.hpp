// Which instructions this processor and its kernel let us use.
#pragma once

#include <cstdint>

namespace pagemesh {

// Ways to compute a product of bf16 operands, the slowest first. Each gives its own rounding, so an engine's
// fingerprint names the one that it took.
enum class KernelPath : int32_t { none = 0, avx512 = 1, avx512_bf16 = 2, amx = 3 };

// The fastest usable path; `none` without AVX512 F, BW, DQ and VL. Asks the kernel for AMX state on first use.
KernelPath best_kernel_path();

bool is_usable(KernelPath path);

}  // namespace pagemesh
