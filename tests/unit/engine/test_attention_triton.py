"""The Triton kernels, interpreted, against exact attention; and that a row's bits are its own."""

import random
from dataclasses import replace

import pytest
import torch

import tests.support.interpreted  # noqa: F401
from services.engine.attention.backend import AttentionShape, Span
from services.engine.attention.triton import TritonAttention

NUM_BLOCKS = 96
SHAPE = AttentionShape(
    num_layers=1,
    num_heads=3,
    num_kv_heads=1,
    head_size=64,
    block_size=16,
    window=None,
    dtype=torch.float32,
    device=torch.device("cpu"),
)


class Tokens:
    """Queries, keys and values of one whole sequence in the shape's dtype."""

    def __init__(self, shape: AttentionShape, length: int, free: list[int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.length = length
        self.block_ids = [free.pop() for _ in range(-(-length // shape.block_size))]

        def draw(heads: int) -> torch.Tensor:
            values = torch.randn(length, heads, shape.head_size, generator=generator)
            return values.to(shape.dtype)

        self.queries, self.keys, self.values = (
            draw(shape.num_heads),
            draw(shape.num_kv_heads),
            draw(shape.num_kv_heads),
        )

    def expected(self, shape: AttentionShape) -> torch.Tensor:
        """[length, heads * head_size] in float64."""
        group = shape.num_heads // shape.num_kv_heads
        keys, values = (part.double().repeat_interleave(group, 1) for part in (self.keys, self.values))
        scores = torch.einsum("qhd,khd->hqk", self.queries.double(), keys) / shape.head_size**0.5
        distance = torch.arange(self.length)[:, None] - torch.arange(self.length)
        is_seen = (distance >= 0) & (distance < (shape.window or self.length))
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(self.length, -1)


class Run:
    """A backend whose every block is NaN before it is written."""

    def __init__(self, shape: AttentionShape, lengths: list[int], seed: int = 0) -> None:
        self.shape = shape
        self.backend = TritonAttention(shape)
        self.backend.allocate(NUM_BLOCKS)
        self.backend.poison(range(NUM_BLOCKS))
        self.free = random.Random(seed).sample(range(1, NUM_BLOCKS), NUM_BLOCKS - 1)
        self.sequences = [Tokens(shape, length, self.free, seed) for seed, length in enumerate(lengths)]

    def step(self, *parts: tuple[int, int, int]) -> list[torch.Tensor]:
        """Runs tokens start..end-1 of sequences by number; what each attended to."""
        taken = [(self.sequences[number], start, end) for number, start, end in parts]
        self.backend.plan([Span(start, end - start, one.block_ids) for one, start, end in taken])
        queries, keys, values = (
            torch.cat([getattr(one, name)[start:end] for one, start, end in taken])
            for name in ("queries", "keys", "values")
        )
        attended = self.backend.attend(0, queries, keys, values)
        return list(attended.split([end - start for _, start, end in parts]))

    def store(self, number: int, start: int, end: int) -> None:
        """Only writes keys and values of tokens start..end-1: prefill is slow here, and tested elsewhere."""
        one = self.sequences[number]
        self.backend.plan([Span(start, end - start, one.block_ids)])
        self.backend._store(0, one.keys[start:end], one.values[start:end])

    def check(self, tolerance: float, *parts: tuple[int, int, int]) -> None:
        for (number, start, end), got in zip(parts, self.step(*parts), strict=True):
            expected = self.sequences[number].expected(self.shape)[start:end]
            assert (got.double() - expected).abs().max() < tolerance, (number, start, end)


@pytest.mark.parametrize("window", [None, 5, 40])
def test_prefill_chunks_and_decode_are_exact_attention(window: int | None) -> None:
    run = Run(replace(SHAPE, num_heads=6, num_kv_heads=2, window=window), [1, 17, 70, 140])
    run.check(2e-6, (0, 0, 1), (1, 0, 5), (2, 0, 69), (3, 0, 63))
    run.check(2e-6, (1, 5, 16), (3, 63, 139))
    run.check(2e-6, (1, 16, 17), (2, 69, 70), (3, 139, 140))


@pytest.mark.parametrize(
    ("head_size", "heads", "kv_heads"), [(64, 7, 1), (80, 2, 2), (96, 4, 1), (128, 4, 2)]
)
def test_head_sizes_and_groups(head_size: int, heads: int, kv_heads: int) -> None:
    run = Run(replace(SHAPE, head_size=head_size, num_heads=heads, num_kv_heads=kv_heads), [20, 70])
    run.check(2e-6, (0, 0, 19), (1, 0, 69))
    run.check(2e-6, (0, 19, 20), (1, 69, 70))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 4e-2), (torch.float16, 3e-3)])
def test_halves(dtype: torch.dtype, tolerance: float) -> None:
    run = Run(replace(SHAPE, dtype=dtype), [40])
    run.check(tolerance, (0, 0, 39))
    run.check(tolerance, (0, 39, 40))


@pytest.mark.parametrize("window", [None, 300])
def test_a_long_row_is_decoded_in_parts(window: int | None) -> None:
    run = Run(replace(SHAPE, window=window, num_heads=2), [600, 3])
    run.store(0, 0, 599)
    run.check(2e-6, (0, 599, 600), (1, 0, 1))


@pytest.mark.parametrize("block_size", [32, 256])
def test_larger_kernel_blocks(block_size: int) -> None:
    run = Run(replace(SHAPE, block_size=block_size, num_heads=2), [300])
    run.store(0, 0, 250)
    run.check(2e-6, (0, 250, 270))
    run.check(2e-6, (0, 270, 271))


def test_positions_before_a_window_are_not_read() -> None:
    """Their blocks may be freed and hold anything by then."""
    run = Run(replace(SHAPE, window=20), [100])
    run.step((0, 0, 98))
    run.backend.poison(run.sequences[0].block_ids[:4])  # positions 0..63; 79 is the first that is seen
    run.check(2e-6, (0, 98, 99))
    run.backend.poison(run.sequences[0].block_ids[4:5])  # in the tile of 80, the first that is seen now
    run.check(2e-6, (0, 99, 100))


def test_a_poisoned_position_that_is_seen_spoils_its_row_alone() -> None:
    run = Run(SHAPE, [50, 50])
    run.step((0, 0, 49), (1, 0, 49))
    run.backend.poison(run.sequences[0].block_ids[1:2])
    bad, good = run.step((0, 49, 50), (1, 49, 50))
    assert bad.isnan().all()
    assert good.isfinite().all()


@pytest.mark.parametrize(("window", "dtype"), [(None, torch.bfloat16), (30, torch.float32)])
def test_invariant_rows_are_the_same_bits_however_they_are_cut_and_whoever_is_beside(
    window: int | None, dtype: torch.dtype
) -> None:
    shape = replace(SHAPE, is_invariant=True, window=window, dtype=dtype)
    alone, cut = Run(shape, [90]), Run(shape, [90, 70, 33], seed=5)
    (whole,) = alone.step((0, 0, 90))
    pieces = [cut.step((1, 0, 70), (0, 0, 1))[1]]
    pieces += [cut.step((0, 1, 30), (2, 0, 33))[0], cut.step((0, 30, 89))[0], cut.step((0, 89, 90))[0]]
    assert torch.equal(torch.cat(pieces), whole)


def test_decode_in_parts_does_not_depend_on_the_neighbours() -> None:
    """Parts lie at fixed positions, also where a longer neighbour needs more of them."""
    lengths = [300, 20, 700]
    shape = replace(SHAPE, num_heads=2)
    alone, together = Run(shape, lengths), Run(shape, lengths, seed=3)
    alone.store(0, 0, 299)
    for number, length in enumerate(lengths):
        together.store(number, 0, length - 1)
    (expected,) = alone.step((0, 299, 300))
    got = together.step((2, 699, 700), (0, 299, 300), (1, 19, 20))[1]
    assert torch.equal(got, expected)
