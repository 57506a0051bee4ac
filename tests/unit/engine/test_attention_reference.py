"""The reference backend against plain attention over each sequence by itself."""

import random
from dataclasses import replace

import pytest
import torch

from services.engine.attention.backend import AttentionShape, Span
from services.engine.attention.reference import ReferenceAttention
from services.engine.attention.registry import UnsupportedAttentionError, make_backend
from services.engine.step import NULL_BLOCK

SHAPE = AttentionShape(
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_size=8,
    block_size=16,
    window=None,
    dtype=torch.float32,
    device=torch.device("cpu"),
)
NUM_BLOCKS = 80


class Tokens:
    """Queries, keys and values of one whole sequence, per layer."""

    def __init__(self, length: int, seed: int, block_ids: list[int]) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.block_ids = block_ids[: -(-length // SHAPE.block_size)]
        del block_ids[: len(self.block_ids)]
        self.length = length
        self.queries = torch.randn(2, length, 6, 8, generator=generator)
        self.keys = torch.randn(2, length, 2, 8, generator=generator)
        self.values = torch.randn(2, length, 2, 8, generator=generator)

    def pass_blocks(self, backend: ReferenceAttention, num: int) -> None:
        """Nothing is left of the first blocks, and nothing names them."""
        backend.poison(self.block_ids[:num])
        self.block_ids[:num] = [NULL_BLOCK] * num

    def expected(self, layer: int, window: int | None) -> torch.Tensor:
        """[length, 48]: each query over the keys at and before it."""
        keys = self.keys[layer].repeat_interleave(3, dim=1)
        values = self.values[layer].repeat_interleave(3, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self.queries[layer], keys) / 8**0.5
        distance = torch.arange(self.length)[:, None] - torch.arange(self.length)
        is_seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(self.length, -1)


def run(backend: ReferenceAttention, layer: int, parts: list[tuple[Tokens, int, int]]) -> list[torch.Tensor]:
    def rows(name: str) -> torch.Tensor:
        return torch.cat([getattr(tokens, name)[layer, start:end] for tokens, start, end in parts])

    attended = backend.attend(layer, rows("queries"), rows("keys"), rows("values"))
    return list(attended.split([end - start for _, start, end in parts]))


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("seed", range(4))
def test_any_cut_equals_attention_over_the_whole(seed: int, window: int | None) -> None:
    """Random chunks of 7 sequences a step, every block NaN before it is written, the null block always."""
    chance = random.Random(seed)
    backend = ReferenceAttention(replace(SHAPE, window=window))
    backend.allocate(NUM_BLOCKS)
    backend.poison(range(NUM_BLOCKS))
    free = chance.sample(range(1, NUM_BLOCKS), NUM_BLOCKS - 1)
    sequences = [Tokens(length, seed, free) for length in (1, 2, 16, 17, 48, 130, 300)]
    done = dict.fromkeys(sequences, 0)
    while active := [one for one in sequences if done[one] < one.length and chance.random() < 0.8] or [
        one for one in sequences if done[one] < one.length
    ]:
        parts = []
        for one in active:
            count = min(chance.choice([1, 1, 3, 16, 31, 90]), one.length - done[one])
            if window is not None:
                one.pass_blocks(backend, max(0, done[one] - window + 1) // SHAPE.block_size)
            parts.append((one, done[one], done[one] + count))
            done[one] += count
        backend.plan([Span(start, end - start, one.block_ids) for one, start, end in parts])
        for layer in range(2):
            for (one, start, end), got in zip(parts, run(backend, layer, parts), strict=True):
                assert torch.allclose(got, one.expected(layer, window)[start:end], atol=1e-5)


def test_a_block_table_longer_than_needed_is_not_read() -> None:
    backend = ReferenceAttention(SHAPE)
    backend.allocate(NUM_BLOCKS)
    backend.poison(range(NUM_BLOCKS))
    tokens = Tokens(20, 0, list(range(1, NUM_BLOCKS)))
    backend.plan([Span(0, 20, [*tokens.block_ids, 70, 71, 72])])
    (got,) = run(backend, 1, [(tokens, 0, 20)])
    assert torch.allclose(got, tokens.expected(1, None), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("magic", {}, "attention backend 'magic' is unknown; there are auto, reference, flash, triton"),
        ("reference", {"block_size": 10}, "cannot run here: no blocks of 10"),
        ("reference", {"dtype": torch.float64}, "cannot run here: no KV of torch.float64"),
        ("reference", {"device": torch.device("meta")}, "cannot run here: no device meta"),
    ],
)
def test_what_a_backend_cannot_do_is_said(name: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedAttentionError, match=message):
        make_backend(name, replace(SHAPE, **changes))  # type: ignore[arg-type]


def test_bytes_per_block() -> None:
    backend = ReferenceAttention(SHAPE)
    backend.allocate(10)
    assert backend._pool.nbytes == 10 * SHAPE.bytes_per_block
