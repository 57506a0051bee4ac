"""Attention alone: every backend against float64, and how fast each is on one long prompt."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.device_time import median_ms
from bench.gpu.sizes import Sizes
from services.engine.attention.backend import AttentionBackend, AttentionShape, Span
from services.engine.attention.registry import UnsupportedAttentionError, find_backend

Row = dict[str, object]
NUM_BLOCKS = 64
VARIANTS = (("reference", False), ("triton", False), ("triton", True), ("flash", False))
"""Name and whether rows are asked to be invariant."""
ERROR_LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Of the largest difference to float64, for unit normal values; about two roundings of the type."""


def attention_errors(sizes: Sizes) -> Iterator[Row]:
    """Chunks, mixed and decode steps in a pool full of NaN; outputs are NaN where nothing is written."""
    for dtype in sizes.dtypes:
        for head, heads, kv_heads, window in _shapes(sizes):
            for name, is_invariant in VARIANTS:
                shape = AttentionShape(
                    1, heads, kv_heads, head, 16, window, dtype, sizes.device, is_invariant
                )
                yield {
                    "backend": name + (" invariant" if is_invariant else ""),
                    "type": str(dtype).removeprefix("torch."),
                    "head": head,
                    "heads": f"{heads}/{kv_heads}",
                    "window": window or "–",
                    **_errors(name, shape, sizes),
                }


def _shapes(sizes: Sizes) -> list[tuple[int, int, int, int | None]]:
    if sizes.device.type == "cpu":
        return [(64, 3, 1, None)]
    return [(64, 9, 3, None), (80, 8, 8, None), (96, 8, 8, None), (128, 28, 4, None), (128, 28, 4, 100)]


def _errors(name: str, shape: AttentionShape, sizes: Sizes) -> Row:
    found = _find(name, shape)
    if isinstance(found, str):
        return {"kernel": found, "error": "–", "ok": "–"}
    kind, shape = found
    lengths = (150, 37, 290) if sizes.device.type == "cuda" else (40, 17)
    with _nan_outputs():
        error = _Sequences(shape, lengths).largest_error(kind(shape))
    return {"kernel": kind.kernel, "error": f"{error:.1e}", "ok": error <= ERROR_LIMIT[shape.dtype]}


def _find(name: str, shape: AttentionShape) -> tuple[type[AttentionBackend], AttentionShape] | str:
    """The class, with blocks of 16 if it takes them, else of 256; or why there is none."""
    reason = ""
    for block_size in (16, 256):
        try:
            wanted = replace(shape, block_size=block_size)
            return find_backend(name, wanted), wanted
        except UnsupportedAttentionError as error:
            reason = str(error)
    return reason


@contextmanager
def _nan_outputs() -> Iterator[None]:
    """Memory that is taken and not written reads NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class _Sequences:
    """Queries, keys and values of whole sequences, in the shape's type."""

    def __init__(self, shape: AttentionShape, lengths: tuple[int, ...]) -> None:
        self._shape = shape
        self._lengths = lengths
        generator = torch.Generator(shape.device).manual_seed(0)
        self._parts = [
            [
                torch.randn(length, heads, shape.head_size, generator=generator, device=shape.device).to(
                    shape.dtype
                )
                for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
            ]
            for length in lengths
        ]

    def largest_error(self, backend: AttentionBackend) -> float:
        backend.allocate(NUM_BLOCKS)
        backend.poison(range(NUM_BLOCKS))
        free = torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(0)).add(1).tolist()
        size = self._shape.block_size
        tables = [[free.pop() for _ in range(-(-length // size))] for length in self._lengths]
        expected = [self._exact(*parts) for parts in self._parts]
        worst, done = 0.0, [0] * len(self._lengths)
        while any(at < length for at, length in zip(done, self._lengths, strict=True)):
            spans, rows = [], []
            for row, length in enumerate(self._lengths):
                left = length - done[row]
                count = min(left, 1 if left <= 3 else max(1, left - 3 if row % 2 else left // 2))
                if count:
                    spans.append(Span(done[row], count, tables[row]))
                    rows.append((row, done[row], done[row] + count))
                    done[row] += count
            backend.plan(spans)
            given = (torch.cat([self._parts[row][i][a:b] for row, a, b in rows]) for i in range(3))
            got = backend.attend(0, *given)
            for part, (row, a, b) in zip(torch.split(got, [b - a for _, a, b in rows]), rows, strict=True):
                error = (part.double() - expected[row][a:b]).abs().max()
                worst = max(worst, float(torch.nan_to_num(error, nan=torch.inf)))
        return worst

    def _exact(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        group = self._shape.num_heads // self._shape.num_kv_heads
        keys, values = (part.double().repeat_interleave(group, 1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) / self._shape.head_size**0.5
        places = torch.arange(len(keys), device=keys.device)
        distance = places[:, None] - places
        is_seen = (distance >= 0) & (distance < (self._shape.window or len(keys)))
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        exact: torch.Tensor = torch.einsum("hqk,khd->qhd", weights, values).reshape(len(keys), -1)
        return exact


def long_prompt(sizes: Sizes) -> Iterator[Row]:
    """Causal attention of one prompt: written out, SDPA's kernels, and the backends through block tables."""
    length, c = sizes.long_context, sizes.model
    generator = torch.Generator(sizes.device).manual_seed(0)
    queries, keys, values = (
        torch.randn(1, c.num_heads, length, c.head_size, generator=generator, device=sizes.device).to(
            sizes.dtype
        )
        for _ in range(3)
    )
    hidden = torch.ones(length, length, dtype=torch.bool, device=sizes.device).triu(1)

    def eager() -> torch.Tensor:
        scores = (queries @ keys.transpose(2, 3)) / c.head_size**0.5
        return torch.matmul(scores.masked_fill(hidden, -torch.inf).softmax(-1), values)

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)

    yield {"way": "eager", "ms": _ms(median_ms(eager, sizes.repeats, sizes.device))}
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                taken = _ms(median_ms(sdpa, sizes.repeats, sizes.device))
        except RuntimeError as error:
            taken = str(error).splitlines()[0][:60]
        yield {"way": f"SDPA {backend.name}", "ms": taken}
    for name, is_invariant in VARIANTS[1:]:
        shape = AttentionShape(
            1, c.num_heads, c.num_heads, c.head_size, 16, None, sizes.dtype, sizes.device, is_invariant
        )
        found = _find(name, shape)
        if isinstance(found, str):
            yield {"way": name, "ms": found}
            continue
        kind, shape = found
        parts = [part[0].transpose(0, 1).contiguous() for part in (queries, keys, values)]
        taken = _ms(_paged_ms(kind(shape), shape, parts, sizes))
        yield {"way": f"{name} paged{' invariant' * is_invariant} ({kind.kernel})", "ms": taken}


def traceable(
    name: str, is_invariant: bool, sizes: Sizes
) -> tuple[Callable[[], object], tuple[str, ...]] | str:
    """One attention call of a backend and the names that prove it; or why there is none."""
    c = sizes.model
    shape = AttentionShape(
        1, c.num_heads, c.num_kv_heads, c.head_size, 16, None, sizes.dtype, sizes.device, is_invariant
    )
    found = _find(name, shape)
    if isinstance(found, str):
        return found
    kind, shape = found
    if sizes.device.type == "cpu" and name != "reference":
        return "interpreted: nothing to trace"
    backend = kind(shape)
    backend.allocate(2)
    backend.plan([Span(0, 1, (1,))])
    parts = [
        torch.ones(1, heads, c.head_size, dtype=sizes.dtype, device=sizes.device)
        for heads in (c.num_heads, c.num_kv_heads, c.num_kv_heads)
    ]
    return (lambda: backend.attend(0, *parts)), kind.trace_names


def _paged_ms(
    backend: AttentionBackend, shape: AttentionShape, parts: list[torch.Tensor], sizes: Sizes
) -> float:
    num_blocks = -(-sizes.long_context // shape.block_size)
    backend.allocate(num_blocks + 1)
    backend.plan([Span(0, sizes.long_context, range(1, num_blocks + 1))])
    return median_ms(lambda: backend.attend(0, *parts), sizes.repeats, sizes.device)


def _ms(value: float) -> str:
    return f"{value:.3f}"
