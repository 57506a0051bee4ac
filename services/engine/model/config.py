"""The shape of a Llama-family decoder, from a Hugging Face config.json. Refuses what it cannot compute."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.model.rope import ROPE_TYPES, RopeConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` that the decoder computes."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What decides the decoder's arithmetic; sizes are counts of float elements, ids or positions."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    embedding_size: int
    """Rows of the embedding, perhaps padded beyond the tokenizer's ids."""
    max_positions: int
    norm_epsilon: float
    rope: RopeConfig
    is_tied: bool
    """The output head is the embedding."""
    window: int | None
    """A position sees itself and window - 1 before it; None: all before it."""


def read_config(folder: ModelFolder) -> DecoderConfig:
    """Raises ModelFolderError for an architecture or option that the decoder does not compute."""
    values, path = folder.config, folder.path
    _refuse_unknown(values, path)
    try:
        heads = int(values["num_attention_heads"])
        return DecoderConfig(
            num_layers=int(values["num_hidden_layers"]),
            hidden_size=int(values["hidden_size"]),
            intermediate_size=int(values["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(values.get("num_key_value_heads") or heads),
            head_size=int(values.get("head_dim") or values["hidden_size"] // heads),
            embedding_size=int(values["vocab_size"]),
            max_positions=int(values["max_position_embeddings"]),
            norm_epsilon=float(values["rms_norm_eps"]),
            rope=_read_rope(values),
            is_tied=bool(values.get("tie_word_embeddings", False)),
            window=_read_window(values, path),
        )
    except (KeyError, TypeError, ValueError) as error:
        cause = f"config.json lacks a usable {error}"
        raise ModelFolderError(path, cause, "copy or download the folder again") from error


def _refuse_unknown(values: Mapping[str, Any], path: Path) -> None:
    family, remedy = values.get("model_type"), f"use a model of {', '.join(FAMILIES)}"
    if family not in FAMILIES:
        raise ModelFolderError(path, f"model_type {family!r} is not supported", remedy)
    if values.get("hidden_act", "silu") != "silu":
        raise ModelFolderError(path, f"hidden_act {values['hidden_act']!r} is not supported", remedy)
    if values.get("quantization_config"):
        raise ModelFolderError(
            path, "its weights are quantized", "use the folder with bf16, fp16 or fp32 weights"
        )
    rope = _rope_values(values)
    if _rope_type(rope) not in ROPE_TYPES:
        raise ModelFolderError(path, f"RoPE type {_rope_type(rope)!r} is not supported", f"use {ROPE_TYPES}")
    if values.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelFolderError(path, "partial rotary embeddings are not supported", remedy)


def _rope_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes rope_parameters; before, rope_scaling and rope_theta stood apart."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    return {"rope_theta": values.get("rope_theta", 10_000.0), **found}


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _read_rope(values: Mapping[str, Any]) -> RopeConfig:
    rope = _rope_values(values)
    return RopeConfig(
        rope_type=_rope_type(rope),
        theta=float(rope["rope_theta"]),
        factor=float(rope.get("factor") or 1.0),
        low_frequency_factor=float(rope.get("low_freq_factor") or 1.0),
        high_frequency_factor=float(rope.get("high_freq_factor") or 4.0),
        original_max_positions=int(rope.get("original_max_position_embeddings") or 8192),
    )


def _read_window(values: Mapping[str, Any], path: Path) -> int | None:
    window = values.get("sliding_window")
    if window is None or not values.get("use_sliding_window", True):
        return None
    kinds = set(values.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1:
        raise ModelFolderError(
            path, "layers with and without a window are not supported", "use another model"
        )
    return int(window)
