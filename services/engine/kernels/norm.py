"""Residual sum and RMS norm (arXiv:1910.07467) in one pass; one program a row, so rows are independent."""

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(
    residual_ptr,
    delta_ptr,
    weight_ptr,
    out_ptr,
    size,
    epsilon,
    HAS_DELTA: tl.constexpr,
    PAD: tl.constexpr,
):
    """Grid (rows): residual [rows, size] float32 += delta; out = residual / rms(residual) * weight.

    Computes in float32, stores in out's type.
    """
    row = tl.program_id(0).to(tl.int64) * size
    lanes = tl.arange(0, PAD)
    is_real = lanes < size
    residual = tl.load(residual_ptr + row + lanes, mask=is_real, other=0.0)
    if HAS_DELTA:
        residual += tl.load(delta_ptr + row + lanes, mask=is_real, other=0.0).to(tl.float32)
        tl.store(residual_ptr + row + lanes, residual, mask=is_real)
    scale = tl.rsqrt(tl.sum(residual * residual, 0) / size + epsilon)
    weight = tl.load(weight_ptr + lanes, mask=is_real, other=0.0).to(tl.float32)
    normed = residual * scale * weight
    tl.store(out_ptr + row + lanes, normed.to(out_ptr.dtype.element_ty), mask=is_real)
