"""Weights in groups of 32 along the input: 4-bit codes with scale and minimum, or 8-bit ones with a scale.

    w = scale · code + minimum          4 bits: code in [0, 15]
    w = scale · code                    8 bits: code in [-127, 127]

Scales and minima are float16, as in GGUF, whose blocks (Q4_0, Q4_1, Q8_0) are kept code for code. Kernels
turn a group into bf16 on the way to the product, whose bits are those of the dequantized weights in bf16.
"""

from dataclasses import dataclass

import torch

GROUP = 32
LARGEST_INT4, LARGEST_INT8 = 15, 127


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """A weight [out, in]; in is a multiple of 32."""

    codes: torch.Tensor
    """uint8 [out, in] (4 bits) or int8 [out, in] (8 bits)."""
    scales: torch.Tensor
    """float16 [out, in / 32]."""
    minima: torch.Tensor | None
    """float16 [out, in / 32]; None for 8 bits."""

    @property
    def bits(self) -> int:
        return 8 if self.minima is None else 4

    def dequantize(self) -> torch.Tensor:
        """float32 [out, in]; every product is exact, every sum rounded once."""
        grouped = _in_groups(self.codes.float()) * self.scales.float()[:, :, None]
        if self.minima is not None:
            grouped = grouped + self.minima.float()[:, :, None]
        return grouped.flatten(1)

    def rows(self, order: torch.Tensor) -> "GroupedRows":
        """The same rows in another order."""
        minima = None if self.minima is None else self.minima[order]
        return GroupedRows(self.codes[order], self.scales[order], minima)


def join_rows(parts: list[GroupedRows]) -> GroupedRows:
    """One under the other; all have the same bits."""
    minima = [part.minima for part in parts if part.minima is not None]
    assert len(minima) in {0, len(parts)}, [part.bits for part in parts]
    return GroupedRows(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minima) if minima else None,
    )


def quantize_int4(weight: torch.Tensor) -> GroupedRows:
    """Takes [out, in] of any float type; codes reach from each group's least to its largest value."""
    grouped = _in_groups(weight.float())
    least, largest = grouped.amin(dim=2), grouped.amax(dim=2)
    scales = ((largest - least) / LARGEST_INT4).half()
    minima = least.half()
    codes = ((grouped - minima.float()[:, :, None]) * _inverse(scales)[:, :, None]).round()
    return GroupedRows(codes.clamp(0, LARGEST_INT4).to(torch.uint8).flatten(1), scales, minima)


def quantize_int8_groups(weight: torch.Tensor) -> GroupedRows:
    """Takes [out, in] of any float type."""
    grouped = _in_groups(weight.float())
    scales = (grouped.abs().amax(dim=2) / LARGEST_INT8).half()
    codes = (grouped * _inverse(scales)[:, :, None]).round().clamp(-LARGEST_INT8, LARGEST_INT8)
    return GroupedRows(codes.to(torch.int8).flatten(1), scales, None)


def _in_groups(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(len(rows), -1, GROUP)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """0 where a group is constant."""
    exact = scales.float()
    return torch.where(exact > 0, 1.0 / exact, 0.0)
