"""Whole steps of a random model: decode by batch, what fusions buy, prefill, invariance and its price."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from bench.gpu.device_time import bandwidth_gb_s, median_ms
from bench.gpu.random_model import (
    RandomExecutor,
    Rows,
    blocks_for,
    random_weights,
    weight_bytes,
)
from bench.gpu.sizes import Sizes
from services.contract.model_folder import ModelFolderError
from services.engine.executors.registry import UnprovenKernelError
from services.engine.executors.torch_executor import TorchOptions
from services.engine.model.weights import DecoderWeights

Row = dict[str, object]
WAYS: tuple[dict[str, Any], ...] = (
    {"attention": "triton"},
    {"attention": "triton", "unfused": frozenset({"graphs"})},
    {"attention": "flash", "block_size": 16},
    {"attention": "flash", "block_size": 256},
)
"""Of decode by batch; what cannot run here says so."""


@contextmanager
def _executor(
    sizes: Sizes, weights: DecoderWeights, *, max_rows: int = 0, **changes: Any
) -> Iterator[RandomExecutor]:
    dtype = str(sizes.dtype).removeprefix("torch.")
    positions, max_rows = max(sizes.context, sizes.prefill) + 1, max_rows or max(sizes.batches)
    options = TorchOptions(
        dtype=dtype,
        device=str(sizes.device),
        max_model_len=positions,
        max_sequences=max_rows,
        **changes,
    )
    executor = RandomExecutor(sizes.model, weights, options)
    executor.load()
    try:
        size = options.block_size
        executor.allocate(max(blocks_for(max_rows, sizes.context, size), blocks_for(1, sizes.prefill, size)))
        yield executor
    finally:
        executor.unload()


def decode_steps(sizes: Sizes) -> Iterator[Row]:
    """Milliseconds of a step, draw included, and which share of it the memory's speed explains."""
    weights = random_weights(sizes.model, sizes.dtype, sizes.device)
    speed = bandwidth_gb_s(sizes.device)
    yield {"way": "memory", "batch": "–", "ms": "–", "tokens/s": "–", "share of floor": f"{speed:.0f} GB/s"}
    for way in WAYS:
        name = _name(way)
        try:
            with _executor(sizes, weights, **way) as executor:
                for batch in sizes.batches:
                    taken = _decode_ms(executor, sizes, batch)
                    floor = floor_ms(sizes, batch, speed)
                    yield {
                        "way": name,
                        "batch": batch,
                        "ms": f"{taken:.2f}",
                        "tokens/s": f"{batch / taken * 1000:.0f}",
                        "share of floor": f"{floor / taken:.0%}",
                    }
        except (ModelFolderError, UnprovenKernelError) as error:
            yield {"way": name, "batch": "–", "ms": str(error)}


def floor_ms(sizes: Sizes, batch: int, speed_gb_s: float) -> float:
    """Weights once, and every row's keys and values."""
    c = sizes.model
    per_position = 2 * c.num_layers * c.num_kv_heads * c.head_size * sizes.dtype.itemsize
    num_bytes = weight_bytes(c, sizes.dtype) + batch * sizes.context * per_position
    return num_bytes / speed_gb_s / 1e6


def fusions(sizes: Sizes) -> Iterator[Row]:
    """A decode step at a middling batch with each fusion switched off, and with none."""
    weights = random_weights(sizes.model, sizes.dtype, sizes.device)
    names = ("qkv", "gate_up", "norm", "gate", "graphs")
    batch = sizes.batches[len(sizes.batches) // 2]
    whole = 0.0
    for off in ((), *((name,) for name in names), names):
        options = {"attention": "triton", "unfused": frozenset(off)}
        with _executor(sizes, weights, max_rows=batch, **options) as executor:
            taken = _decode_ms(executor, sizes, batch)
        whole = whole or taken
        yield {
            "without": ", ".join(off) or "–",
            "batch": batch,
            "ms": f"{taken:.2f}",
            "to all fused": f"{taken / whole:.2f}",
        }


def prefill(sizes: Sizes) -> Iterator[Row]:
    """Tokens a second of one prompt, in one step and in chunks."""
    weights = random_weights(sizes.model, sizes.dtype, sizes.device)
    flops = 2 * weight_bytes(sizes.model, sizes.dtype) / sizes.dtype.itemsize
    for way in (WAYS[0], *WAYS[2:]):
        try:
            with _executor(sizes, weights, **way) as executor:
                for chunk in (sizes.prefill, sizes.prefill // 4):
                    taken = _prefill_ms(executor, sizes, chunk)
                    yield {
                        "way": _name(way),
                        "tokens": sizes.prefill,
                        "chunk": chunk,
                        "ms": f"{taken:.1f}",
                        "tokens/s": f"{sizes.prefill / taken * 1000:.0f}",
                        "TFLOP/s": f"{flops * sizes.prefill / taken / 1e9:.0f}",
                    }
        except (ModelFolderError, UnprovenKernelError) as error:
            yield {"way": _name(way), "ms": str(error)}


def invariance(sizes: Sizes) -> Iterator[Row]:
    """Whether a row's logits are the same bits alone and beside others, whole and cut; and the price."""
    weights = random_weights(sizes.model, sizes.dtype, sizes.device)
    base: list[float] = []
    for is_invariant in (False, True):
        with _executor(sizes, weights, attention="triton", is_invariant=is_invariant) as executor:
            beside, cut = _same_bits(executor, sizes)
            taken = [_decode_ms(executor, sizes, batch) for batch in sizes.batches]
            taken.append(_prefill_ms(executor, sizes, sizes.prefill))
        base = base or taken
        names = [*(f"decode {batch} to default" for batch in sizes.batches), "prefill to default"]
        prices = {name: f"{now / then:.2f}" for name, now, then in zip(names, taken, base, strict=True)}
        yield {
            "invariant": is_invariant,
            "same bits beside others": beside,
            "same bits cut": cut,
            **prices,
            **({"ok": beside and cut} if is_invariant else {}),
        }


def _same_bits(executor: RandomExecutor, sizes: Sizes) -> tuple[bool, bool]:
    """Of the first row's logits: alone against beside all others, whole against cut in three."""
    seen: list[torch.Tensor] = []

    def keep(sequence_ids: Any, logits: Any) -> None:
        seen.append(torch.from_numpy(logits.copy())[list(sequence_ids).index(1)])

    batch = max(sizes.batches)
    with Rows(executor, batch, sizes.context) as rows:
        for number in range(1, batch + 1):
            executor.run([rows.prefill(number)])
        executor.watch_logits(keep)
        executor.run(rows.decode()[:1])
        executor.run(rows.decode())
        executor.watch_logits(None)
        for start, end in _thirds(sizes.context):
            executor.run([rows.prefill(1, start, end)])
        executor.watch_logits(keep)
        executor.run(rows.decode()[:1])
        executor.watch_logits(None)
    alone, beside, cut = seen
    return torch.equal(alone, beside), torch.equal(alone, cut)


def _thirds(length: int) -> list[tuple[int, int]]:
    cuts = [0, length // 3, 2 * length // 3 + 1, length]
    return list(pairwise(cuts))


def _decode_ms(executor: RandomExecutor, sizes: Sizes, batch: int) -> float:
    with Rows(executor, batch, sizes.context) as rows:
        decode = rows.decode()
        return median_ms(lambda: executor.run(decode), sizes.repeats, sizes.device)


def _prefill_ms(executor: RandomExecutor, sizes: Sizes, chunk: int) -> float:
    with Rows(executor, 1, sizes.prefill) as rows:
        parts = [
            rows.prefill(1, start, min(start + chunk, sizes.prefill))
            for start in range(0, sizes.prefill, chunk)
        ]

        def work() -> None:
            for part in parts:
                executor.run([part])

        return median_ms(work, max(1, sizes.repeats // 4), sizes.device)


def _name(way: dict[str, Any]) -> str:
    off = way.get("unfused", frozenset())
    size = f", blocks of {way['block_size']}" if "block_size" in way else ""
    return f"{way['attention']}{size}{' without ' + ', '.join(off) if off else ''}"
