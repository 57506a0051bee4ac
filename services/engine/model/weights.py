"""Reads a decoder's weights from safetensors and fuses what one matrix product can compute."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.model.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b, `weight` [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    name: str = ""
    """Of projections that are fused: qkv, gate_up."""
    cuts: tuple[int, ...] = ()
    """Outputs of each of those."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    """Rows: all query heads, then key heads, then value heads."""
    head_norm: torch.Tensor | None
    """[query heads + key heads, head_size], where queries and keys are normed (Qwen3)."""
    attention_out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All of a decoder."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor
    """[embedding_size, hidden_size]; the embedding itself if tied."""


def load_weights(
    folder: ModelFolder, config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Raises ModelFolderError if a tensor is missing, misshapen or unreadable."""
    try:
        with ExitStack() as stack:
            return _WeightReader(folder, config, dtype, device, stack).read()
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(
            folder.path, f"weights cannot be read ({error})", "download it again"
        ) from error


class _WeightReader:
    def __init__(
        self,
        folder: ModelFolder,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        stack: ExitStack,
    ) -> None:
        self._path: Path = folder.path
        self._config = config
        self._dtype = dtype
        self._device = device
        files = [stack.enter_context(safe_open(file, framework="pt")) for file in folder.weights]
        self._files: dict[str, Any] = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def read(self) -> DecoderWeights:
        size = (self._config.embedding_size, self._config.hidden_size)
        embedding = self._tensor("model.embed_tokens.weight", size)
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layers()),
            final_norm=self._tensor("model.norm.weight", (self._config.hidden_size,)),
            head=embedding if self._config.is_tied else self._tensor("lm_head.weight", size),
        )

    def _layers(self) -> Iterator[LayerWeights]:
        c = self._config
        q_size, kv_size = c.num_heads * c.head_size, c.num_kv_heads * c.head_size
        for index in range(c.num_layers):
            layer = f"model.layers.{index}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            qkv = {
                f"{attention}.q_proj": q_size,
                f"{attention}.k_proj": kv_size,
                f"{attention}.v_proj": kv_size,
            }
            gate_up = {f"{mlp}.gate_proj": c.intermediate_size, f"{mlp}.up_proj": c.intermediate_size}
            yield LayerWeights(
                attention_norm=self._tensor(f"{layer}.input_layernorm.weight", (c.hidden_size,)),
                qkv=self._linear(qkv, c.hidden_size, "qkv"),
                head_norm=self._head_norm(attention),
                attention_out=self._linear({f"{attention}.o_proj": c.hidden_size}, q_size),
                mlp_norm=self._tensor(f"{layer}.post_attention_layernorm.weight", (c.hidden_size,)),
                gate_up=self._linear(gate_up, c.hidden_size, "gate_up"),
                down=self._linear({f"{mlp}.down_proj": c.hidden_size}, c.intermediate_size),
            )

    def _head_norm(self, attention: str) -> torch.Tensor | None:
        c = self._config
        if f"{attention}.q_norm.weight" not in self._files:
            return None
        queries = self._tensor(f"{attention}.q_norm.weight", (c.head_size,))
        keys = self._tensor(f"{attention}.k_norm.weight", (c.head_size,))
        return torch.cat((queries.expand(c.num_heads, -1), keys.expand(c.num_kv_heads, -1)))

    def _linear(self, parts: dict[str, int], in_size: int, name: str = "") -> Linear:
        """Fuses projections of one input; a family without biases has none in its files."""
        weights = [self._tensor(f"{name}.weight", (out_size, in_size)) for name, out_size in parts.items()]
        has_bias = any(f"{name}.bias" in self._files for name in parts)
        biases = [self._tensor(f"{name}.bias", (size,)) for name, size in parts.items()] if has_bias else []
        bias = torch.cat(biases) if has_bias else None
        return Linear(torch.cat(weights), bias, name, tuple(parts.values()))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        remedy = "use weights that belong to its config.json"
        if name not in self._files:
            raise ModelFolderError(self._path, f"has no tensor {name}", remedy)
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            cause = f"{name} has shape {list(tensor.shape)}, config.json says {list(shape)}"
            raise ModelFolderError(self._path, cause, remedy)
        return tensor.to(self._device, self._dtype)
