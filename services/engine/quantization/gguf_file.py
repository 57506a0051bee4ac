"""Reads a Llama-family GGUF file's tensors under their Hugging Face names, 4-bit blocks kept as they are.

Knows the container and its block formats (github.com/ggml-org/ggml, docs/gguf.md); no model, no kernels.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch

from services.contract.model_folder import ModelFolderError
from services.engine.quantization.groups import GROUP, GroupedRows

_LAYER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_NAMES: Mapping[str, str] = MappingProxyType(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
)
_PAIRING_FAMILIES = ("llama",)
"""Architectures whose query and key rows GGUF stores with the two dims of a rotated pair side by side."""


class GgufFile:
    """One file, mapped; tensors by Hugging Face name."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFolderError."""
        self._path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ModelFolderError(path, f"is not a GGUF file ({error})", "download it again") from error
        self._architecture = str(self._value(reader, "general.architecture"))
        self._num_heads = int(self._value(reader, f"{self._architecture}.attention.head_count"))
        self._num_kv_heads = int(self._value(reader, f"{self._architecture}.attention.head_count_kv"))
        self._tensors = {_name_of(tensor.name): tensor for tensor in reader.tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def grouped(self, name: str) -> GroupedRows | None:
        """A weight's blocks; None if the file holds it in another format."""
        tensor = self._tensors[name]
        read = _READERS.get(tensor.tensor_type)
        if read is None:
            return None
        rows = read(tensor.data)
        order = self._row_order(name, len(rows.scales))
        return rows if order is None else rows.rows(order)

    def _row_order(self, name: str, num_rows: int) -> torch.Tensor | None:
        """Takes rotated pairs apart again: a head's rows (0, half, 1, half + 1 …) → (0, 1 …, half …)."""
        kind = name.rsplit(".", 2)[-2]
        if self._architecture not in _PAIRING_FAMILIES or kind not in {"q_proj", "k_proj"}:
            return None
        num_heads = self._num_heads if kind == "q_proj" else self._num_kv_heads
        rows = torch.arange(num_rows).view(num_heads, -1, 2)
        return rows.transpose(1, 2).reshape(-1)

    def _value(self, reader: gguf.GGUFReader, key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise ModelFolderError(self._path, f"lacks {key}", "use a GGUF file of a Llama-family model")
        return field.contents()


def _name_of(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; unknown names stay."""
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if parts[0] in _NAMES:
        return f"{_NAMES[parts[0]]}.{parts[1]}"
    return name


def _read_q4_0(raw: np.ndarray) -> GroupedRows:
    """Blocks of a float16 scale and 16 bytes; w = scale · (code - 8)."""
    blocks = raw.reshape(len(raw), -1, 2 + GROUP // 2)
    scales = _halves(blocks, 0)
    return GroupedRows(_nibbles(blocks[:, :, 2:]), scales, -8 * scales)


def _read_q4_1(raw: np.ndarray) -> GroupedRows:
    """Blocks of a float16 scale, a float16 minimum and 16 bytes."""
    blocks = raw.reshape(len(raw), -1, 4 + GROUP // 2)
    return GroupedRows(_nibbles(blocks[:, :, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _read_q8_0(raw: np.ndarray) -> GroupedRows:
    """Blocks of a float16 scale and 32 signed bytes."""
    blocks = raw.reshape(len(raw), -1, 2 + GROUP)
    codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8)
    return GroupedRows(torch.from_numpy(codes.reshape(len(raw), -1)), _halves(blocks, 0), None)


def _halves(blocks: np.ndarray, start: int) -> torch.Tensor:
    """The float16 that each block holds at a byte."""
    return torch.from_numpy(np.ascontiguousarray(blocks[:, :, start : start + 2]).view(np.float16)[..., 0])


def _nibbles(packed: np.ndarray) -> torch.Tensor:
    """The low halves of a block's 16 bytes are its first 16 codes, the high ones the others."""
    both = np.concatenate((packed & 15, packed >> 4), axis=2)
    return torch.from_numpy(both.reshape(len(packed), -1))


_READERS: Mapping[gguf.GGMLQuantizationType, Callable[[np.ndarray], GroupedRows]] = MappingProxyType(
    {
        gguf.GGMLQuantizationType.Q4_0: _read_q4_0,
        gguf.GGMLQuantizationType.Q4_1: _read_q4_1,
        gguf.GGMLQuantizationType.Q8_0: _read_q8_0,
    }
)
