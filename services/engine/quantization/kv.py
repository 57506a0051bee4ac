"""Keys and values in INT8 with one scale per head and token.

    k ≈ scale · code                    code in [-127, 127]

Codes are whole numbers that bf16 holds exactly, so scores are those of the codes times the key's scale, and a
value's scale goes into its weight. A token is quantized once, when it is stored; all read the same codes.
"""

from dataclasses import dataclass

import torch

LARGEST_CODE = 127
SMALLEST_SCALE = 1e-30
"""Below it a head counts as zeros: its inverse would not be finite."""


@dataclass(frozen=True, slots=True)
class Int8Heads:
    """Vectors [..., head_size]."""

    codes: torch.Tensor
    """int8 [..., head_size]."""
    scales: torch.Tensor
    """float32 [...]."""

    def dequantize(self) -> torch.Tensor:
        """float32 [..., head_size]."""
        return self.codes.float() * self.scales[..., None]


def quantize_heads(vectors: torch.Tensor) -> Int8Heads:
    """Takes float32 [..., head_size]."""
    scales = vectors.abs().amax(dim=-1) / LARGEST_CODE
    inverse = torch.where(scales > SMALLEST_SCALE, 1.0 / scales, 0.0)
    return Int8Heads((vectors * inverse[..., None]).round().to(torch.int8), scales)
