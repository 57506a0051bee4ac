"""Paged attention by our own Triton kernels: any kernel block, the sure path on every CUDA device.

Tests run the same kernels on the CPU under TRITON_INTERPRET=1, where `cpu` counts as a device.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
import triton

from services.engine.attention.backend import AttentionShape, Capabilities, Span
from services.engine.attention.paged import ANY_BLOCK, SM80_ON, Ints, PagedAttention, PagedInputs, copy_once
from services.engine.kernels.attention import attend_kernel, decode_join_kernel, decode_part_kernel

_TILES = {2: (64, 64), 4: (16, 32)}
"""Queries (heads counted) and keys of a tile by bytes of a value: 64 queries are wgmma's least on sm_90, and
float32, which has no tensor core at full precision, has registers for few."""
_PART = 256
"""Keys of a part of a long row that decodes."""
_STRIDE = 16
"""Programs that share the parts of one row and key head."""


class TritonAttention(PagedAttention):
    """Implements AttentionBackend."""

    name: ClassVar[str] = "triton"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=frozenset({"cuda"} if isinstance(attend_kernel, triton.JITFunction) else {"cuda", "cpu"}),
        archs=SM80_ON,
        block_sizes=ANY_BLOCK,
        head_sizes=frozenset({16, 32, 64, 80, 96, 128}),
        kv_dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
        has_window=True,
        is_row_invariant=True,
    )
    kernel: ClassVar[str] = f"triton {triton.__version__}"
    trace_names: ClassVar[tuple[str, ...]] = ("attend_kernel", "decode_part_kernel")

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        group = shape.num_heads // shape.num_kv_heads
        self._group_pad = triton.next_power_of_2(group)
        self._scale = math.log2(math.e) / math.sqrt(shape.head_size)
        self._shared = {
            "HEADS": shape.num_heads,
            "WINDOW": shape.window or 0,
            "HEAD": shape.head_size,
            "HEAD_PAD": triton.next_power_of_2(shape.head_size),
        }
        self._reads = {"GROUP": group, "BLOCK": shape.block_size, "TILE_N": tiles_for(shape)[1]}
        self._tiles = torch.empty(0), torch.empty(0)

    def clear_begun(self, spans: Sequence[Span]) -> None:
        """The kernels read no position that was not written."""

    @classmethod
    def missing(cls) -> str | None:
        return None

    def use(self, inputs: PagedInputs) -> None:
        super().use(inputs)
        if self._is_cut(inputs):
            return
        if max(inputs.lengths) == 1:  # without a copy from the host: a graph may be recording
            rows = torch.arange(len(inputs.lengths), dtype=torch.int32, device=self.shape.device)
            self._tiles = rows, torch.zeros_like(rows)
            return
        moved = copy_once(tile_rows(inputs.lengths, self._tile_m // self._group_pad), self.shape.device)
        self._tiles = moved["rows"], moved["firsts"]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        stored_keys, stored_values = self._store(layer, keys, values)
        out = queries.new_empty(len(queries), self.shape.num_heads * self.shape.head_size)
        if self._is_cut(self.inputs):
            self._decode(out, queries, stored_keys, stored_values)
        else:
            self._attend(out, queries, stored_keys, stored_values)
        return out

    @property
    def _tile_m(self) -> int:
        return tiles_for(self.shape)[0]

    def _is_cut(self, inputs: PagedInputs) -> bool:
        """Rows of one token each make too few programs to read the pool at full speed, unless cut."""
        return not self.shape.is_invariant and len(inputs.lengths) == len(inputs.slots)

    def _attend(
        self, out: torch.Tensor, queries: torch.Tensor, stored_keys: torch.Tensor, stored_values: torch.Tensor
    ) -> None:
        inputs = self.inputs
        rows, firsts = self._tiles
        attend_kernel[(len(rows), self.shape.num_kv_heads)](
            out,
            queries,
            stored_keys,
            stored_values,
            inputs.tables,
            inputs.query_starts,
            inputs.ends,
            rows,
            firsts,
            self._scale,
            queries.stride(0),
            stored_keys.stride(1),
            inputs.tables.stride(0),
            **self._shared,
            **self._reads,
            GROUP_PAD=self._group_pad,
            TILE_M=self._tile_m,
            num_warps=4,
            num_stages=2,
        )

    def _decode(
        self, out: torch.Tensor, queries: torch.Tensor, stored_keys: torch.Tensor, stored_values: torch.Tensor
    ) -> None:
        s, inputs = self.shape, self.inputs
        max_parts = -(-inputs.max_keys // _PART)
        sums, tops, weights = self._workspace(len(queries), max_parts)
        stride = min(_STRIDE, max_parts)
        decode_part_kernel[(len(queries), s.num_kv_heads, stride)](
            sums,
            tops,
            weights,
            queries,
            stored_keys,
            stored_values,
            inputs.tables,
            inputs.ends,
            self._scale,
            queries.stride(0),
            stored_keys.stride(1),
            inputs.tables.stride(0),
            max_parts,
            **self._shared,
            **self._reads,
            PART=_PART,
            TILE_M=max(16, self._group_pad),
            num_warps=4,
            num_stages=2,
        )
        decode_join_kernel[(len(queries), s.num_heads)](
            out, sums, tops, weights, inputs.ends, max_parts, **self._shared, PART=_PART, num_warps=1
        )

    def _workspace(self, num_rows: int, max_parts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Float32 for the parts; fresh each time, so that a graph has its own."""
        s = self.shape
        count = num_rows * s.num_heads * max_parts
        sums = torch.empty(count * s.head_size, dtype=torch.float32, device=s.device)
        return sums, sums.new_empty(count), sums.new_empty(count)


def tiles_for(shape: AttentionShape) -> tuple[int, int]:
    """Queries and keys of a tile; a tile has at least the heads of one key head."""
    queries, keys = _TILES[shape.dtype.itemsize]
    group: int = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
    return max(queries, group), keys


def tile_rows(lengths: tuple[int, ...], tile: int) -> dict[str, Ints]:
    """For each tile of so many tokens its row and its first token in the row."""
    counts = [-(-length // tile) for length in lengths]
    rows = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    firsts = np.concatenate([np.arange(count, dtype=np.int32) * tile for count in counts])
    return {"rows": rows, "firsts": firsts}
