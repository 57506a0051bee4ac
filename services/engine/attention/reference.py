"""Paged attention in plain torch: gathers each group of rows' blocks and attends with an explicit mask.

    pool   [layers, 2, blocks, kv heads, block size, head size]   so that a gather by (block, kv head) is
    gather [rows, kv heads, context, head size]                   contiguous, as the product wants it

Nothing outside a row's context counts, NaN included: a block's unwritten tail is zeroed when it is begun,
blocks behind the window are not gathered, and a short table is padded with its own first gathered block,
whose keys are masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from services.engine.attention.backend import AttentionShape, Capabilities, Span, begun_blocks

_FEWEST_BLOCKS = 8
"""Contexts up to so many blocks share a group; padding them costs less than another group."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of like query length and context, padded to the largest."""

    num_rows: int
    num_queries: int
    gathered: torch.Tensor
    """[rows * kv heads * blocks]: which (block, kv head) to gather."""
    mask: torch.Tensor
    """[rows, 1, 1 or queries, context]: 0 or minus infinity, added to the scores."""
    tokens: torch.Tensor | None
    """[rows * queries]: the token at each place, padding repeats a row's first; None: all tokens in order."""
    kept: torch.Tensor | None
    """Places that are no padding, in token order; None: all."""
    kept_tokens: torch.Tensor | None
    """The tokens of `kept`."""


class ReferenceAttention:
    """Exact softmax attention; the oracle for other backends."""

    name: ClassVar[str] = "reference"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=frozenset({"cpu", "cuda"}),
        archs=frozenset(),
        block_sizes=frozenset({8, 16, 32, 64, 128, 256}),
        head_sizes=frozenset(),
        kv_dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
        has_window=True,
        is_row_invariant=False,
    )
    kernel: ClassVar[str] = f"torch {torch.__version__} scaled_dot_product_attention"
    trace_names: ClassVar[tuple[str, ...]] = ("scaled_dot_product_attention",)

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._pool = torch.empty(0)
        self._workspaces: list[torch.Tensor] = [torch.empty(0), torch.empty(0)]
        self._slots = torch.empty(0)
        self._groups: list[_Group] = []

    @classmethod
    def missing(cls) -> str | None:
        return None

    def allocate(self, num_blocks: int) -> None:
        s = self._shape
        size = (s.num_layers, 2, num_blocks, s.num_kv_heads, s.block_size, s.head_size)
        self._pool = torch.zeros(size, dtype=s.dtype, device=s.device)
        self._workspaces = [self._pool.new_empty(0), self._pool.new_empty(0)]

    def poison(self, block_ids: Sequence[int]) -> None:
        self._pool[:, :, list(block_ids)] = torch.nan

    def plan(self, spans: Sequence[Span]) -> None:
        if begun := begun_blocks(spans, self._shape.block_size):
            self._pool[:, :, begun] = 0
        self._slots = self._tensor(np.concatenate([self._slots_of(span) for span in spans]).reshape(-1))
        firsts = np.cumsum([0, *(span.length for span in spans[:-1])])
        self._groups = [self._group(spans, firsts, members) for members in self._like_spans(spans)]

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        head_size = self._shape.head_size
        stored_keys, stored_values = self._pool[layer]
        stored_keys.view(-1, head_size).index_copy_(0, self._slots, keys.reshape(-1, head_size))
        stored_values.view(-1, head_size).index_copy_(0, self._slots, values.reshape(-1, head_size))
        if len(self._groups) == 1 and self._groups[0].tokens is None:
            return self._attend_group(self._groups[0], queries, stored_keys, stored_values)
        attended = queries.new_empty(len(queries), self._shape.num_heads * head_size)
        for group in self._groups:
            assert group.tokens is not None
            assert group.kept_tokens is not None
            part = self._attend_group(group, queries[group.tokens], stored_keys, stored_values)
            attended[group.kept_tokens] = part if group.kept is None else part[group.kept]
        return attended

    def _attend_group(
        self, group: _Group, queries: torch.Tensor, stored_keys: torch.Tensor, stored_values: torch.Tensor
    ) -> torch.Tensor:
        """Takes [rows * queries, heads, head_size]; gives [rows * queries, heads * head_size]."""
        s = self._shape
        keys = self._gather(0, stored_keys, group)
        values = self._gather(1, stored_values, group)
        if group.num_queries == 1:  # the query heads of one key head stand where queries would
            folded = queries.reshape(group.num_rows, s.num_kv_heads, -1, s.head_size)
            attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
            return attended.reshape(group.num_rows, -1)
        heads = queries.reshape(group.num_rows, group.num_queries, -1, s.head_size).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, keys, values, attn_mask=group.mask, enable_gqa=True)
        return attended.transpose(1, 2).reshape(group.num_rows * group.num_queries, -1)

    def _gather(self, which: int, stored: torch.Tensor, group: _Group) -> torch.Tensor:
        """Copies blocks into a buffer that lives on: fresh memory would cost more than the copy."""
        s = self._shape
        num_values = len(group.gathered) * s.block_size * s.head_size
        if self._workspaces[which].numel() < num_values:
            self._workspaces[which] = stored.new_empty(num_values)
        out = self._workspaces[which][:num_values].view(len(group.gathered), -1)
        torch.index_select(stored.view(-1, s.block_size * s.head_size), 0, group.gathered, out=out)
        return out.view(group.num_rows, s.num_kv_heads, -1, s.head_size)

    def _slots_of(self, span: Span) -> np.ndarray:
        """Where each token's key heads go in [blocks * kv heads * block size]."""
        s = self._shape
        positions = np.arange(span.start, span.start + span.length)
        blocks = np.asarray(span.block_ids, dtype=np.int64)[positions // s.block_size]
        heads = blocks[:, None] * s.num_kv_heads + np.arange(s.num_kv_heads)
        return heads * s.block_size + (positions % s.block_size)[:, None]

    def _like_spans(self, spans: Sequence[Span]) -> Iterator[list[int]]:
        """Groups spans whose query lengths and contexts round up to the same powers of two."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index, span in enumerate(spans):
            num_blocks = max(self._num_blocks(span), _FEWEST_BLOCKS)
            key = ((span.length - 1).bit_length(), (num_blocks - 1).bit_length())
            groups.setdefault(key, []).append(index)
        yield from groups.values()

    def _first_block(self, span: Span) -> int:
        """What lies before it is behind the window of every token and not read."""
        window = self._shape.window
        return 0 if window is None else max(0, span.start - window + 1) // self._shape.block_size

    def _num_blocks(self, span: Span) -> int:
        return -(-(span.start + span.length) // self._shape.block_size) - self._first_block(span)

    def _group(self, spans: Sequence[Span], firsts: np.ndarray, members: list[int]) -> _Group:
        s = self._shape
        chosen = [spans[index] for index in members]
        lengths = np.array([span.length for span in chosen])
        num_queries = int(lengths.max())
        num_blocks = max(self._num_blocks(span) for span in chosen)
        tables = np.array([self._padded_table(span, num_blocks) for span in chosen])
        heads = tables[:, None, :] * s.num_kv_heads + np.arange(s.num_kv_heads)[None, :, None]
        offsets = np.arange(num_queries)
        is_real = offsets < lengths[:, None]
        tokens = firsts[members][:, None] + np.where(is_real, offsets, 0)
        is_all = len(chosen) == len(spans) and bool(is_real.all())
        return _Group(
            num_rows=len(chosen),
            num_queries=num_queries,
            gathered=self._tensor(heads.reshape(-1)),
            mask=self._mask(chosen, offsets, num_blocks),
            tokens=None if is_all else self._tensor(tokens.reshape(-1)),
            kept=None if is_real.all() else self._tensor(np.flatnonzero(is_real)),
            kept_tokens=None if is_all else self._tensor(tokens[is_real]),
        )

    def _padded_table(self, span: Span, num_blocks: int) -> list[int]:
        first = self._first_block(span)
        table = list(span.block_ids[first : first + self._num_blocks(span)])
        return table + table[:1] * (num_blocks - len(table))

    def _mask(self, spans: Sequence[Span], offsets: np.ndarray, num_blocks: int) -> torch.Tensor:
        """Takes the queries' offsets [queries]; a padded query sees at least what its position would."""
        size = self._shape.block_size
        starts = np.array([[span.start] for span in spans])
        firsts = np.array([[self._first_block(span) * size] for span in spans])
        ends = self._tensor(starts + offsets)[:, None, :, None]
        columns = self._tensor(firsts + np.arange(num_blocks * size))[:, None, None, :]
        is_hidden = columns > ends
        if self._shape.window is not None:
            is_hidden |= columns <= ends - self._shape.window
        return torch.zeros(is_hidden.shape, dtype=self._shape.dtype, device=self._shape.device).masked_fill_(
            is_hidden, -torch.inf
        )

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(self._shape.device)
