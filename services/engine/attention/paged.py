"""What the GPU backends share: the pool, where tokens lie in it, and a step's arrays on the device.

    pool   [layers, 2, blocks, block size, kv heads, head size]

The arrays of a step are packed into one buffer and copied once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from services.engine.attention.backend import AttentionShape, Span, begun_blocks

Ints = npt.NDArray[np.int32]

SM80_ON = frozenset({80, 86, 87, 89, 90, 100, 103, 110, 120, 121})
"""Compute capabilities from 8.0 on."""
ANY_BLOCK = frozenset({16, 32, 64, 128, 256})
"""Kernel blocks where a kernel does not care."""


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """A step's spans on the device; a graph keeps one for good and fills its tensors anew."""

    slots: torch.Tensor
    """[tokens] int64: where a token's key and value go in [blocks * block size]."""
    query_starts: torch.Tensor
    """[rows + 1] int32: a row's tokens are query_starts[row] .. query_starts[row + 1] - 1."""
    ends: torch.Tensor
    """[rows] int32: positions that exist after this step."""
    tables: torch.Tensor
    """[rows, width] int32: block tables; what lies behind a row's end is not read."""
    lengths: tuple[int, ...]
    """Tokens of each row, as the host knows them."""
    max_keys: int
    """No row's end is beyond it."""


def pack_spans(spans: Sequence[Span], block_size: int) -> dict[str, Ints]:
    """The arrays of PagedInputs by name, slots as int32."""
    width = max(-(-(span.start + span.length) // block_size) for span in spans)
    tables = np.zeros((len(spans), width), np.int32)
    slots = []
    for row, span in enumerate(spans):
        used = -(-(span.start + span.length) // block_size)
        tables[row, :used] = span.block_ids[:used]
        positions = np.arange(span.start, span.start + span.length, dtype=np.int32)
        slots.append(tables[row, positions // block_size] * block_size + positions % block_size)
    lengths = [span.length for span in spans]
    return {
        "slots": np.concatenate(slots),
        "query_starts": np.cumsum([0, *lengths], dtype=np.int32),
        "ends": np.array([span.start + span.length for span in spans], np.int32),
        "tables": tables,
    }


def copy_once(arrays: Mapping[str, Ints], device: torch.device) -> dict[str, torch.Tensor]:
    """Moves int32 arrays to the device in one transfer; gives views of it, each at a multiple of 16 bytes:
    Triton compiles a kernel anew for pointers that are not."""
    sizes = [array.size for array in arrays.values()]
    starts = np.cumsum([0, *(-(-size // 4) * 4 for size in sizes)]).tolist()
    flat = torch.empty(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    values = flat.numpy()
    for start, array in zip(starts, arrays.values(), strict=False):
        values[start : start + array.size] = array.reshape(-1)
    moved = flat.to(device, non_blocking=True)
    parts = (moved[start : start + size] for start, size in zip(starts, sizes, strict=False))
    return {name: part.view(array.shape) for (name, array), part in zip(arrays.items(), parts, strict=True)}


class PagedAttention:
    """The part of a backend that is not the kernel."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._pool = torch.empty(0)
        self._inputs: PagedInputs | None = None

    @property
    def inputs(self) -> PagedInputs:
        """Of the step that was planned last."""
        assert self._inputs is not None, "plan comes first"
        return self._inputs

    def allocate(self, num_blocks: int) -> None:
        s = self.shape
        size = (s.num_layers, 2, num_blocks, s.block_size, s.num_kv_heads, s.head_size)
        assert num_blocks * s.block_size < 2**31, "slots are int32"
        self._pool = torch.zeros(size, dtype=s.dtype, device=s.device)

    def poison(self, block_ids: Sequence[int]) -> None:
        self._pool[:, :, list(block_ids)] = torch.nan

    def plan(self, spans: Sequence[Span]) -> None:
        self.clear_begun(spans)
        moved = copy_once(pack_spans(spans, self.shape.block_size), self.shape.device)
        self.use(
            PagedInputs(
                slots=moved["slots"].long(),
                query_starts=moved["query_starts"],
                ends=moved["ends"],
                tables=moved["tables"],
                lengths=tuple(span.length for span in spans),
                max_keys=max(span.start + span.length for span in spans),
            )
        )

    def use(self, inputs: PagedInputs) -> None:
        """Takes a step's arrays that are on the device already."""
        self._inputs = inputs

    def clear_begun(self, spans: Sequence[Span]) -> None:
        """A kernel may weigh the tail of a begun block by zero, and zero times NaN is NaN."""
        if begun := begun_blocks(spans, self.shape.block_size):
            self._pool[:, :, begun] = 0

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See AttentionBackend."""
        raise NotImplementedError

    def _store(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the step's keys and values; gives the layer's two halves of the pool, blocks first."""
        s = self.shape
        stored_keys, stored_values = self._pool[layer]
        slots = self.inputs.slots
        stored_keys.view(-1, s.num_kv_heads, s.head_size).index_copy_(0, slots, keys)
        stored_values.view(-1, s.num_kv_heads, s.head_size).index_copy_(0, slots, values)
        return stored_keys, stored_values
