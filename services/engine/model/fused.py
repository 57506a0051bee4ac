"""Operators on a GPU: residual and norm in one kernel, the gate in one, a product that no neighbour changes.

Each can be switched off, so that what it buys can be measured. The residual stream is float32 where norms are
fused.
"""

import torch
import triton

from services.engine.kernels.activation import gate_kernel
from services.engine.kernels.matmul import matmul_kernel
from services.engine.kernels.norm import add_norm_kernel
from services.engine.model.operators import PlainOperators
from services.engine.model.weights import Linear

_TILE_M = 64
_TILE_K = 64
_FEW_OUTPUTS = 16_384
"""Up to so many outputs it takes narrow tiles to occupy a GPU; the matrix decides, never the rows."""


class FusedOperators(PlainOperators):
    """Implements Operators."""

    def __init__(self, unfused: frozenset[str] = frozenset(), *, is_invariant: bool = False) -> None:
        super().__init__(unfused)
        self._has_norm = is_invariant or "norm" not in unfused
        self._has_gate = "gate" not in unfused
        self._is_invariant = is_invariant

    def start(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded.float() if self._has_norm else embedded

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._has_norm:
            return super().add_norm(residual, delta, weight, epsilon)
        rows, size = residual.shape
        out = torch.empty(residual.shape, dtype=weight.dtype, device=residual.device)
        add_norm_kernel[(rows,)](
            residual,
            residual if delta is None else delta,
            weight,
            out,
            size,
            epsilon,
            HAS_DELTA=delta is not None,
            PAD=triton.next_power_of_2(size),
            num_warps=8,
        )
        return residual, out

    def project(self, inputs: torch.Tensor, linear: Linear) -> torch.Tensor:
        return multiply(inputs, linear) if self._is_invariant else super().project(inputs, linear)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not self._has_gate:
            return super().gate(gate_up)
        rows, size = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        gate_kernel[(rows, triton.cdiv(size, 1024))](out, gate_up, size, TILE=1024, num_warps=4)
        return out


def multiply(inputs: torch.Tensor, linear: Linear) -> torch.Tensor:
    """inputs [rows, in] times the weight; a row's bits are the same whatever the other rows are."""
    rows, (outputs, size) = len(inputs), linear.weight.shape
    out = inputs.new_empty(rows, outputs)
    tile_n = 32 if outputs <= _FEW_OUTPUTS else 128
    matmul_kernel[(triton.cdiv(rows, _TILE_M) * triton.cdiv(outputs, tile_n),)](
        out,
        inputs,
        linear.weight,
        linear.weight if linear.bias is None else linear.bias,
        rows,
        outputs,
        size,
        inputs.stride(0),
        HAS_BIAS=linear.bias is not None,
        TILE_M=_TILE_M,
        TILE_N=tile_n,
        TILE_K=_TILE_K,
        num_warps=4,
        num_stages=3,
    )
    return out
