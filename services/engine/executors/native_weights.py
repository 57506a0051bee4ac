"""Gives a native model its weights: in bf16, INT8 or 4-bit groups, these from a GGUF file if there is one.

Knows formats and where a layer's tensors stand in files; no steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.model.config import DecoderConfig
from services.engine.model.rope import inverse_frequencies
from services.engine.model.weights import DecoderWeights, LayerWeights, Linear, load_weights
from services.engine.native.library import Floats, Library, LinearName, NativeModel, VectorName
from services.engine.native.linear import ColumnOrder, PackedLinear, pack_bf16, pack_groups, pack_int8
from services.engine.quantization.gguf_file import GgufFile
from services.engine.quantization.groups import (
    GROUP,
    GroupedRows,
    join_rows,
    quantize_int4,
    quantize_int8_groups,
)
from services.engine.quantization.rows import quantize_rows

_TENSORS = {
    LinearName.QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    LinearName.ATTENTION_OUT: ("self_attn.o_proj",),
    LinearName.GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
    LinearName.DOWN: ("mlp.down_proj",),
}


class Packer(Protocol):
    """A format of weights."""

    def pack(self, names: Sequence[str], linear: Linear, order: ColumnOrder, is_head: bool) -> PackedLinear:
        """Packs the tensors of these names, which stand under each other in `linear`."""


class StoredBlocks:
    """A model folder's GGUF file, if it holds one."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFolderError if the file cannot be read."""
        files = sorted(folder.glob("*.gguf"))
        self._file = GgufFile(files[0]) if len(files) == 1 else None

    def find(self, names: Sequence[str], bits: int) -> GroupedRows | None:
        """The blocks of these tensors, one under the other; None if one is missing or in another format."""
        if self._file is None or any(name not in self._file for name in names):
            return None
        parts = [self._file.grouped(name) for name in names]
        found = [part for part in parts if part is not None and part.bits == bits]
        return join_rows(found) if len(found) == len(parts) else None


class PlainPacker:
    """bf16."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def pack(self, names: Sequence[str], linear: Linear, order: ColumnOrder, is_head: bool) -> PackedLinear:
        return pack_bf16(self._library, linear.weight, order, linear.bias)


class Int8Packer:
    """A scale per output channel; one per 32 inputs for the head, whose error nothing evens out."""

    def __init__(self, library: Library, blocks: StoredBlocks) -> None:
        self._library = library
        self._blocks = blocks

    def pack(self, names: Sequence[str], linear: Linear, order: ColumnOrder, is_head: bool) -> PackedLinear:
        if is_head and linear.weight.shape[1] % GROUP == 0:
            groups = self._blocks.find(names, bits=8) or quantize_int8_groups(linear.weight)
            return pack_groups(self._library, groups, order, linear.bias)
        return pack_int8(self._library, quantize_rows(linear.weight), order, linear.bias)


class Int4Packer:
    """Groups of 32: stored blocks code for code, else quantized here. The head has 8-bit codes."""

    def __init__(self, library: Library, blocks: StoredBlocks) -> None:
        self._library = library
        self._blocks = blocks

    def pack(self, names: Sequence[str], linear: Linear, order: ColumnOrder, is_head: bool) -> PackedLinear:
        groups = self._blocks.find(names, bits=4) or self._blocks.find(names, bits=8)
        if groups is None:
            groups = quantize_int8_groups(linear.weight) if is_head else quantize_int4(linear.weight)
        return pack_groups(self._library, groups, order, linear.bias)


def make_packer(weights: str, library: Library, folder: ModelFolder, config: DecoderConfig) -> Packer:
    """Raises ModelFolderError if the model's shape does not go with the format."""
    if weights == "int8":
        return Int8Packer(library, StoredBlocks(folder.path))
    if weights == "int4":
        sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_size)
        if any(size % GROUP for size in sizes):
            cause = f"4-bit weights need layers of a multiple of {GROUP} inputs"
            raise ModelFolderError(folder.path, cause, "use --weights int8 or plain")
        return Int4Packer(library, StoredBlocks(folder.path))
    return PlainPacker(library)


def give_weights(model: NativeModel, folder: ModelFolder, config: DecoderConfig, packer: Packer) -> None:
    """Packs all weights into native memory. Raises ModelFolderError."""
    weights = load_weights(folder, config, torch.bfloat16, torch.device("cpu"))
    model.set_embedding(weights.embedding.contiguous().data_ptr())
    model.set_vector(0, VectorName.FREQUENCIES, inverse_frequencies(config.rope, config.head_size).numpy())
    model.set_vector(0, VectorName.FINAL_NORM, _floats(weights.final_norm))
    head = ("model.embed_tokens.weight" if config.is_tied else "lm_head.weight",)
    with packer.pack(head, Linear(weights.head, None), ColumnOrder.PLAIN, is_head=True) as packed:
        model.set_linear(0, LinearName.HEAD, packed.handle)
    for index in range(len(weights.layers)):
        _give_layer(model, index, weights, config.num_heads, packer)


def _give_layer(
    model: NativeModel, index: int, weights: DecoderWeights, num_heads: int, packer: Packer
) -> None:
    layer = weights.layers[index]
    model.set_vector(index, VectorName.ATTENTION_NORM, _floats(layer.attention_norm))
    model.set_vector(index, VectorName.MLP_NORM, _floats(layer.mlp_norm))
    if layer.head_norm is not None:
        model.set_vector(index, VectorName.QUERY_NORM, _floats(layer.head_norm[0]))
        model.set_vector(index, VectorName.KEY_NORM, _floats(layer.head_norm[num_heads]))
    for place, tensors in _TENSORS.items():
        names = [f"model.layers.{index}.{tensor}.weight" for tensor in tensors]
        order = ColumnOrder.GATE_UP if place is LinearName.GATE_UP else ColumnOrder.PLAIN
        with packer.pack(names, _linear_of(layer, place), order, is_head=False) as packed:
            model.set_linear(index, place, packed.handle)


def _linear_of(layer: LayerWeights, place: LinearName) -> Linear:
    linears = {
        LinearName.QKV: layer.qkv,
        LinearName.ATTENTION_OUT: layer.attention_out,
        LinearName.GATE_UP: layer.gate_up,
        LinearName.DOWN: layer.down,
    }
    return linears[place]


def _floats(values: torch.Tensor) -> Floats:
    floats: Floats = values.float().contiguous().numpy()
    return floats
