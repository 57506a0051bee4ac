"""Weights in INT8 with one scale per output channel, activations in 15 bits with one per token.

    w ≈ scale · code                    code in [-127, 127]
    x ≈ scale · (128 · high + low)      high in [-127, 127], low in [-64, 63]

Plain 8-bit activations change one in ten of a small model's likeliest ids; two 8-bit halves change one in
forty, by the same 8-bit instructions. Sums are exact integers, so their order cannot matter.
"""

from dataclasses import dataclass

import torch

LARGEST_CODE = 127
SMALLEST_SCALE = 1e-30
"""Below it a row counts as zeros: its inverse would not be finite."""
HALF = 128
"""What a step of the high half is worth."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A weight [out, in]."""

    codes: torch.Tensor
    """int8 [out, in]."""
    scales: torch.Tensor
    """float32 [out]."""

    def dequantize(self) -> torch.Tensor:
        """float32 [out, in]."""
        return self.codes.float() * self.scales[:, None]


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Activations [tokens, in]."""

    high: torch.Tensor
    """int8 [tokens, in]."""
    low: torch.Tensor
    """int8 [tokens, in]."""
    scales: torch.Tensor
    """float32 [tokens]."""


def quantize_rows(weight: torch.Tensor) -> Int8Rows:
    """Takes [out, in] of any float type."""
    exact = weight.float()
    scales = exact.abs().amax(dim=1) / LARGEST_CODE
    codes = (exact * _inverse(scales)[:, None]).round()
    return Int8Rows(codes.to(torch.int8), scales)


def split_rows(activations: torch.Tensor) -> SplitRows:
    """Takes float32 [tokens, in]; the kernels' own rounding, operation by operation."""
    scales = activations.abs().amax(dim=1) / (LARGEST_CODE * HALF)
    codes = (activations * _inverse(scales)[:, None]).round().to(torch.int32)
    high = (codes + HALF // 2) >> 7
    return SplitRows(high.to(torch.int8), (codes - HALF * high).to(torch.int8), scales)


def multiply(activations: SplitRows, weight: Int8Rows) -> torch.Tensor:
    """float32 [tokens, out]: exact integer sums, then (high · 128 + low) · token's · channel's scale."""
    codes = weight.codes.double()  # sums below 2^53 are exact
    high = (activations.high.double() @ codes.T).float()
    low = (activations.low.double() @ codes.T).float()
    return (high * HALF + low) * activations.scales[:, None] * weight.scales


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """0 where a row is all zeros, or as good as."""
    return torch.where(scales > SMALLEST_SCALE, 1.0 / scales, 0.0)
