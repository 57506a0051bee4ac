"""How large the sections are: those of a GPU, and small ones that a CPU interprets in seconds."""

from dataclasses import dataclass, replace

import torch

from services.engine.model.config import DecoderConfig
from services.engine.model.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    device: torch.device
    dtypes: tuple[torch.dtype, ...]
    """Of the attention section; the others take the first."""
    model: DecoderConfig
    """Random weights of this shape are timed."""
    small_model: DecoderConfig
    """Small enough to be computed in float64 as well."""
    batches: tuple[int, ...]
    context: int
    """Positions behind each row that decodes."""
    prefill: int
    """Tokens of a prompt."""
    long_context: int
    """Where attention alone is compared."""
    repeats: int

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[0]


def qwen2_7b(num_layers: int = 28, scale: int = 1) -> DecoderConfig:
    """The shape of Qwen2-7B, or one with fewer layers and all widths divided by `scale`."""
    return DecoderConfig(
        num_layers=num_layers,
        hidden_size=3584 // scale,
        intermediate_size=18_944 // scale,
        num_heads=28 // min(scale, 4),
        num_kv_heads=4 // min(scale, 4),
        head_size=128 if scale == 1 else 64,
        embedding_size=152_064 // scale,
        max_positions=32_768,
        norm_epsilon=1e-6,
        rope=RopeConfig("default", 1e6),
        is_tied=False,
        window=None,
    )


def sizes_for(device: torch.device) -> Sizes:
    """A CPU gets those that Triton's interpreter finishes."""
    if device.type == "cuda":
        return Sizes(
            device=device,
            dtypes=(torch.bfloat16, torch.float16, torch.float32),
            model=qwen2_7b(),
            small_model=qwen2_7b(4, 4),
            batches=(1, 8, 32, 128),
            context=512,
            prefill=2048,
            long_context=2048,
            repeats=20,
        )
    tiny = replace(qwen2_7b(1, 64), embedding_size=500)
    return Sizes(
        device=device,
        dtypes=(torch.float32,),
        model=tiny,
        small_model=tiny,
        batches=(1, 2),
        context=20,
        prefill=24,
        long_context=40,
        repeats=1,
    )
