"""Rotary position embedding (arXiv:2104.09864) in the half-split form: frequencies, angles, rotation."""

import math
from dataclasses import dataclass

import torch

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base and scaling of the frequencies."""

    rope_type: str
    theta: float
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_max_positions: int = 8192


def inverse_frequencies(config: RopeConfig, head_size: int) -> torch.Tensor:
    """Radians per position, [head_size / 2] float32."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = 1.0 / (config.theta**exponents)
    if config.rope_type == "linear":
        return frequencies / config.factor
    if config.rope_type == "llama3":
        return _scale_llama3(frequencies, config)
    return frequencies


def _scale_llama3(frequencies: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended (Llama 3.1)."""
    lengths = 2 * math.pi / frequencies
    low, high = config.low_frequency_factor, config.high_frequency_factor
    blend = (config.original_max_positions / lengths - low) / (high - low)
    blended = (1 - blend) * frequencies / config.factor + blend * frequencies
    scaled = torch.where(lengths > config.original_max_positions / low, frequencies / config.factor, blended)
    return torch.where(lengths < config.original_max_positions / high, frequencies, scaled)


def rotation(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines, [tokens, 1, head_size], for `rotate`; angles are taken in float32."""
    angles = positions.float()[:, None] * frequencies
    cosines, sines = angles.cos(), angles.sin()
    return (
        torch.cat((cosines, cosines), -1)[:, None].to(dtype),
        torch.cat((-sines, sines), -1)[:, None].to(dtype),
    )


def rotate(heads: torch.Tensor, cosines: torch.Tensor, signed_sines: torch.Tensor) -> torch.Tensor:
    """Turns [tokens, heads, head_size] by their positions' angles; the two halves of a head are the pairs."""
    return torch.addcmul(heads * cosines, heads.roll(heads.shape[-1] // 2, -1), signed_sines)
