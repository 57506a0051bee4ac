"""SwiGLU (arXiv:2002.05202) of a fused gate and up projection."""

import triton
import triton.language as tl


@triton.jit
def gate_kernel(out_ptr, gate_up_ptr, size, TILE: tl.constexpr):
    """Grid (rows, tiles): gate_up [rows, 2 * size], gates first; out [rows, size] = silu(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_real = lanes < size
    gate = tl.load(gate_up_ptr + row * 2 * size + lanes, mask=is_real, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * size + size + lanes, mask=is_real, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * size + lanes, out.to(out_ptr.dtype.element_ty), mask=is_real)
