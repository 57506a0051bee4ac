"""The draw on the device against the draw on the host: equal logits give equal ids, with no allowance."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.sampling import device_sampler
from services.engine.sampling.device_sampler import DeviceSampler, likeliest
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import RowOutput, SamplingSpec, SequenceSpec

CPU = torch.device("cpu")
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 1.7},
    {"top_k": 6},
    {"top_k": 1},
    {"top_k": 10**6},
    {"top_p": 0.5},
    {"top_p": 0.95, "temperature": 2.5},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.03},
    {"repetition_penalty": 1.3},
    {"temperature": 0.0, "repetition_penalty": 0.7, "frequency_penalty": 0.4},
    {"presence_penalty": 0.5, "frequency_penalty": 0.4, "top_p": 0.8},
    {"logit_bias": ((3, 4.0), (5, -100.0), (3, 1.0))},
    {"min_tokens": 9, "stop_ids": frozenset({1, 2, 10**7})},
    {"temperature": 0.0, "logprobs": 3},
    {"logprobs": 0},
)


def make_states(chance: random.Random, vocab: int, ways: list[dict[str, Any]]) -> list[SequenceState]:
    states = []
    for number, way in enumerate(ways):
        ids = tuple(chance.randrange(min(vocab, 50)) for _ in range(chance.randrange(2, 12)))
        sampling = SamplingSpec(**{"seed": chance.randrange(2**64), "choice": chance.randrange(3), **way})
        states.append(SequenceState(SequenceSpec(number, ids, 2, sampling)))
    return states


def draw_both(
    logits: torch.Tensor, states: list[SequenceState], sampler: DeviceSampler | None = None
) -> list[RowOutput]:
    """Asserts that both draw the same; gives it."""
    if sampler is None:
        sampler = DeviceSampler(logits.shape[1], CPU)
        for state in states:
            sampler.penalties.add(state)
    expected = Sampler(logits.shape[1]).draw(logits, states)
    got = sampler.draw(logits, states)
    for one, other in zip(got, expected, strict=True):
        assert (one.sequence_id, one.ids, one.is_usable) == (other.sequence_id, other.ids, other.is_usable)
        assert (one.logprobs is None) == (other.logprobs is None)
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert mine.ids == theirs.ids
            assert mine.values == pytest.approx(theirs.values, abs=1e-12)
    return got


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([2, 7, 60, 1500]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]),
    grain=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_every_way_of_sampling_draws_what_the_host_draws(
    seed: int, vocab: int, spread: float, grain: float
) -> None:
    """Coarse logits tie often, as bf16 ones do."""
    chance = random.Random(seed)
    ways = [chance.choice(WAYS) for _ in range(12)]
    if vocab < 8:
        ways = [way for way in ways if "logit_bias" not in way] or [{}]
    logits = torch.randn(len(ways), vocab, generator=torch.Generator().manual_seed(seed)) * spread
    if grain:
        logits = (logits / grain).round() * grain
    draw_both(logits, make_states(chance, vocab, ways))


def test_flat_distributions_that_no_short_list_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sampler, "FEWEST_CANDIDATES", 16)
    chance = random.Random(1)
    ways: list[dict[str, Any]] = [
        {},
        {"top_p": 0.99},
        {"min_p": 1e-6},
        {"temperature": 0.0},
        {"top_k": 300},
    ] * 8
    for spread in (0.0, 0.3, 2.0):
        logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(2)) * spread
        draw_both(logits, make_states(chance, 2000, ways))


def test_bfloat16_and_padded_logits() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    padded = torch.cat((logits, torch.full((4, 20), 1e4, dtype=torch.bfloat16)), dim=1)
    states = make_states(random.Random(0), 300, [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"logprobs": 2}])
    expected = Sampler(300).draw(padded, states)
    assert [one.ids for one in DeviceSampler(300, CPU).draw(padded, states)] == [one.ids for one in expected]


def test_counts_grow_with_what_is_drawn_and_end_with_the_sequence() -> None:
    """Many more sequences than slots at first; slots are used again, and nothing stays in them."""
    chance, sampler = random.Random(4), DeviceSampler(30, CPU)
    ways: list[dict[str, Any]] = [
        {"frequency_penalty": 0.8, "presence_penalty": 0.3},
        {"repetition_penalty": 1.5, "temperature": 0.0},
        {},
    ] * 7
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        states = make_states(chance, 30, ways)
        for state in states:
            sampler.penalties.add(state)
        for _ in range(6):
            logits = torch.randn(len(states), 30, generator=generator) * 2
            for state, output in zip(states, draw_both(logits, states, sampler), strict=True):
                state.append(output.ids[0])
        for state in states:
            sampler.penalties.remove(state.sequence_id)


def test_a_row_that_is_not_finite_or_all_masked_is_not_usable_and_its_neighbours_are() -> None:
    logits = torch.randn(6, 1500, generator=torch.Generator().manual_seed(0))
    logits[1, 7], logits[2, 3], logits[3] = torch.nan, torch.inf, -torch.inf
    everything = {"min_tokens": 20, "stop_ids": frozenset(range(1500))}
    ways = [
        {},
        {},
        {"temperature": 0.0},
        {},
        everything,
        {"logit_bias": ((4, 1e308), (4, 1e308)), "top_k": 5},
    ]
    got = draw_both(logits, make_states(random.Random(0), 1500, ways))
    assert [output.is_usable for output in got] == [True, False, False, False, False, False]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 30))
def test_likeliest_is_a_stable_sort_cut_short(values: list[int], size: int) -> None:
    scores = torch.tensor([values, values[::-1]], dtype=torch.float64)
    for row, got in zip(scores, likeliest(scores, min(size, len(values))), strict=True):
        order = sorted(range(len(values)), key=lambda i: (-float(row[i]), i))
        assert got.tolist() == order[:size]
