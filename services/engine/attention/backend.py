"""What an attention backend is: a KV pool, a plan per step, one call per layer; and what it can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One row of the table in docs/gpu.md. An empty set means any."""

    devices: frozenset[str]
    archs: frozenset[int]
    """CUDA compute capabilities, 90 for 9.0; a generation's minors are listed one by one."""
    block_sizes: frozenset[int]
    """Kernel blocks: positions that lie together in the pool."""
    head_sizes: frozenset[int]
    kv_dtypes: frozenset[torch.dtype]
    has_window: bool
    is_row_invariant: bool
    """If the shape asks for it, a row's bits depend neither on its neighbours nor on how it was cut."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a model and its engine ask of a backend."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    window: int | None
    dtype: torch.dtype
    device: torch.device
    is_invariant: bool = False
    """One kernel for every row, where the backend has the choice."""

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of all layers."""
        num_values = 2 * self.num_layers * self.num_kv_heads * self.head_size * self.block_size
        return num_values * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: `length` tokens from absolute position `start`."""

    start: int
    length: int
    block_ids: Sequence[int]
    """Covers start + length positions; behind the window of `start` the null block may stand."""


def begun_blocks(spans: Sequence[Span], block_size: int) -> list[int]:
    """Blocks that a step begins and leaves unfinished: their tail may hold anything, NaN included."""
    ends = [(span, (span.start + span.length) // block_size) for span in spans]
    return [
        span.block_ids[last]
        for span, last in ends
        if span.start <= last * block_size < span.start + span.length
    ]


class AttentionBackend(Protocol):
    """Owns the KV pool. `plan` comes once a step, then `attend` once per layer."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    kernel: ClassVar[str]
    """What computes, for the fingerprint: name and generation or version of the library."""
    trace_names: ClassVar[tuple[str, ...]]
    """A profiler's trace of a step shows an operator or kernel whose name holds one of these."""

    def __init__(self, shape: AttentionShape) -> None: ...

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run here whatever is asked of it, in a few words; None if it can."""

    def allocate(self, num_blocks: int) -> None:
        """Allocates blocks 0..num_blocks-1."""

    def plan(self, spans: Sequence[Span]) -> None:
        """Takes the step's spans, whose tokens lie one after the other in every later tensor."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Stores keys and values, attends.

        Takes [tokens, heads, head_size] each, of the shape's dtype; gives [tokens, query heads * head_size].
        """

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fills blocks with NaN."""
