"""A matrix product whose rows do not depend on how many there are: one tile shape, sums in one order.

cuBLAS picks kernels, and with them the order of sums, by the number of rows; this never does.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def matmul_kernel(
    out_ptr,
    input_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    input_stride,
    HAS_BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """Grid (tiles of rows * tiles of outputs), rows first; sums are float32, weight and out have no gaps.

    out [rows, outputs] = input [rows, inputs] x weight [outputs, inputs]^T + bias.
    """
    # Programs beside each other share weights.
    num_tiles = tl.cdiv(num_rows, TILE_M)
    rows = tl.program_id(0) % num_tiles * TILE_M + tl.arange(0, TILE_M)
    outputs = tl.program_id(0) // num_tiles * TILE_N + tl.arange(0, TILE_N)
    lanes = tl.arange(0, TILE_K)
    inputs = input_ptr + rows.to(tl.int64)[:, None] * input_stride + lanes[None, :]
    weights = weight_ptr + outputs.to(tl.int64)[:, None] * num_inputs + lanes[None, :]
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, num_inputs, TILE_K):
        is_real = (begin + lanes < num_inputs)[None, :]
        left = tl.load(inputs + begin, mask=is_real & (rows < num_rows)[:, None], other=0.0)
        right = tl.load(weights + begin, mask=is_real & (outputs < num_outputs)[:, None], other=0.0)
        sums = tl.dot(left, tl.trans(right), sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0).to(tl.float32)[None, :]
    out = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    is_stored = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    tl.store(out_ptr + out, sums.to(out_ptr.dtype.element_ty), mask=is_stored)
