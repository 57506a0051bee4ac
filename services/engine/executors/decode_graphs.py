"""Decode steps as recorded graphs by batch size: rows of one token each, padded to the next size.

Padding rows are token 0 at position 0 of the null block: they write there and see themselves alone. Knows no
sequences; the tensors of a graph are filled anew for every step and live as long as the graph.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from services.engine.attention.backend import Span
from services.engine.attention.paged import PagedAttention, PagedInputs
from services.engine.model.decoder import Decoder

Computed = tuple[torch.Tensor, torch.Tensor]
"""Final hidden states and logits of every row."""
Record = Callable[[Callable[[], Computed], Any], tuple[Callable[[], None], Computed, Any]]
"""Records a computation; gives what replays it, the tensors that then hold its results, and its memory pool,
which the next recording takes as its second argument."""

_NUM_COLUMNS = 4
"""Token id, position, slot, end; the block table follows."""


def batch_sizes(max_rows: int) -> list[int]:
    """1, 2, 4, 8 and on in eights, up to the first that holds `max_rows`."""
    sizes = [1, 2, 4, *range(8, max_rows + 8, 8)]
    return sizes[: bisect_left(sizes, max_rows) + 1]


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: Callable[[], None]
    computed: Computed


class DecodeGraphs:
    """Owns the tensors that graphs read; `record` is CUDA's, or a stand-in that runs again."""

    def __init__(
        self,
        decoder: Decoder,
        attention: PagedAttention,
        max_rows: int,
        max_positions: int,
        record: Record | None = None,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._record = record or record_cuda
        self._sizes = batch_sizes(max_rows)
        self._block_size = attention.shape.block_size
        width = _NUM_COLUMNS + -(-max_positions // self._block_size)
        device = attention.shape.device
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(self._sizes[-1], width, dtype=torch.int32, pin_memory=is_cuda)
        self._rows = self._host.numpy()
        self._rows[:, 3] = 1
        self._device = self._host.to(device, copy=True)
        self._graphs: dict[int, _Graph] = {}

    def record(self) -> None:
        """Records every size, the largest first, whose memory then serves the others."""
        pool = None
        for size in reversed(self._sizes):
            replay, computed, pool = self._record(self._computation(size), pool)
            self._graphs[size] = _Graph(replay, computed)

    def can_run(self, spans: Sequence[Span]) -> bool:
        return bool(self._graphs) and len(spans) <= self._sizes[-1] and all(it.length == 1 for it in spans)

    def run(self, ids: Sequence[int], spans: Sequence[Span]) -> Computed:
        """Final hidden states and logits of the rows; they hold until the next step."""
        num_rows = len(spans)
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        self._fill(ids, spans, size)
        self._attention.clear_begun(spans)
        self._device[:size].copy_(self._host[:size], non_blocking=True)
        graph = self._graphs[size]
        graph.replay()
        hidden, logits = graph.computed
        return hidden[:num_rows], logits[:num_rows]

    def _fill(self, ids: Sequence[int], spans: Sequence[Span], size: int) -> None:
        rows, block_size, num_rows = self._rows, self._block_size, len(spans)
        positions = np.array([span.start for span in spans], np.int32)
        rows[:num_rows, 0], rows[:num_rows, 1], rows[:num_rows, 3] = ids, positions, positions + 1
        for row, span in enumerate(spans):
            count = span.start // block_size + 1
            rows[row, _NUM_COLUMNS : _NUM_COLUMNS + count] = span.block_ids[:count]
        blocks = rows[np.arange(num_rows), _NUM_COLUMNS + positions // block_size]
        rows[:num_rows, 2] = blocks * block_size + positions % block_size
        rows[num_rows:size, :3], rows[num_rows:size, 3], rows[num_rows:size, _NUM_COLUMNS] = 0, 1, 0

    def _computation(self, size: int) -> Callable[[], Computed]:
        rows = self._device[:size]
        starts = torch.arange(size + 1, dtype=torch.int32, device=rows.device)
        max_keys = (rows.shape[1] - _NUM_COLUMNS) * self._block_size
        # Each column begins at a multiple of 16 bytes, as copy_once has it.
        columns = torch.empty(_NUM_COLUMNS, -(-size // 4) * 4, dtype=torch.int32, device=rows.device)
        columns = columns[:, :size]
        slots = torch.empty(size, dtype=torch.int64, device=rows.device)
        inputs = PagedInputs(slots, starts, columns[3], rows[:, _NUM_COLUMNS:], (1,) * size, max_keys)

        def compute() -> Computed:
            self._attention.use(inputs)
            columns.copy_(rows[:, :_NUM_COLUMNS].T)
            slots.copy_(columns[2])
            hidden = self._decoder.forward(columns[0], columns[1], self._attention)
            return hidden, self._decoder.logits(hidden)

        return compute


def record_cuda(compute: Callable[[], Computed], pool: Any) -> tuple[Callable[[], None], Computed, Any]:
    """Records a CUDA graph after two runs on a side stream, which compile kernels and load libraries."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        computed = compute()
    return graph.replay, computed, graph.pool()
