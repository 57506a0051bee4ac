"""Draws: exact against a plain float64 reference, distributed as softmax says, blind to neighbours."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.sampling import sampler as sampler_module
from services.engine.sampling.randomness import uniform
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import RowOutput, SamplingSpec, SequenceSpec

SMALL, LARGE = 40, 20_000


def state_of(ids: list[int] | None = None, num_prompt: int | None = None, **sampling: Any) -> SequenceState:
    known = [0] if ids is None else ids
    num_prompt_tokens = len(known) if num_prompt is None else num_prompt
    return SequenceState(SequenceSpec(7, tuple(known), num_prompt_tokens, SamplingSpec(**sampling)))


def random_logits(vocab: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draw(logits: torch.Tensor, state: SequenceState) -> RowOutput:
    (output,) = Sampler(len(logits)).draw(logits[None], [state])
    return output


def drawn_id(logits: torch.Tensor, state: SequenceState) -> int:
    output = draw(logits, state)
    assert output.is_usable
    (token_id,) = output.ids
    return token_id


def expected_probabilities(logits: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    """The plain way: sort everything, cut, renormalise. Float64 [vocab]."""
    scores = logits.double() / spec.temperature
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))
    if 0 < spec.top_k < len(order):
        order = order[: spec.top_k]
    probabilities = scores[order].softmax(0)
    if spec.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        order = [token_id for token_id, mass in zip(order, before, strict=True) if float(mass) < spec.top_p]
    probabilities = scores[order].softmax(0)
    if spec.min_p > 0:
        kept = probabilities >= spec.min_p * probabilities[0]
        order = [token_id for token_id, is_kept in zip(order, kept, strict=True) if is_kept]
    full = torch.zeros(len(logits), dtype=torch.float64)
    full[order] = scores[order].softmax(0)
    return full


def expected_id(logits: torch.Tensor, state: SequenceState) -> int:
    spec = state.sampling
    probabilities = expected_probabilities(logits, spec)
    order = sorted(range(len(logits)), key=lambda i: (-float(probabilities[i]), i))
    cumulative = probabilities[order].cumsum(0)
    u = uniform(spec.seed, spec.choice, len(state.ids))
    return order[int((cumulative <= u).sum())]


FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 6},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.03},
}


@pytest.mark.parametrize("name", FILTERS)
def test_draws_are_distributed_as_softmax_says(name: str) -> None:
    """Chi-square over 3,000 positions; ids expected fewer than 5 times are pooled."""
    logits, num_draws = random_logits(SMALL, seed=3), 3000
    expected = expected_probabilities(logits, SamplingSpec(**FILTERS[name])) * num_draws
    counts = Counter(
        drawn_id(logits, state_of([0] * (1 + position % 50), seed=position // 50, **FILTERS[name]))
        for position in range(num_draws)
    )
    observed = torch.tensor([float(counts[i]) for i in range(SMALL)])
    assert observed[expected == 0].sum() == 0
    common = expected >= 5
    rare = (expected > 0) & ~common
    cells = torch.cat((expected[common], expected[rare].sum()[None]))
    seen = torch.cat((observed[common], observed[rare].sum()[None]))
    is_cell = cells > 0
    statistic = float((((seen - cells) ** 2)[is_cell] / cells[is_cell]).sum())
    freedom = int(is_cell.sum()) - 1
    assert statistic < freedom + 3.5 * math.sqrt(2 * freedom), (statistic, freedom)


@pytest.mark.parametrize("other", ["choice", "position", "seed"])
def test_draws_of_neighbouring_keys_are_not_correlated(other: str) -> None:
    logits, pairs = random_logits(SMALL, seed=5), 2000
    firsts, seconds = [], []
    for index in range(pairs):
        key = {"seed": index, "choice": 0}
        neighbour = {**key, other: key.get(other, 0) + 1} if other != "position" else key
        firsts.append(drawn_id(logits, state_of([0] * 5, **key)))
        seconds.append(drawn_id(logits, state_of([0] * (6 if other == "position" else 5), **neighbour)))
    is_same = sum(a == b for a, b in zip(firsts, seconds, strict=True)) / pairs
    by_chance = float((expected_probabilities(logits, SamplingSpec()) ** 2).sum())
    assert abs(is_same - by_chance) < 4 * math.sqrt(by_chance * (1 - by_chance) / pairs)
    assert abs(np.corrcoef(firsts, seconds)[0, 1]) < 4 / math.sqrt(pairs)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(1, 30),
    temperature=st.floats(0.05, 3),
    top_k=st.sampled_from([0, 1, 2, 7, 300, 2999, 3000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1)),
    spread=st.sampled_from([0.3, 2.0, 8.0]),
    is_coarse=st.booleans(),
)
def test_partial_selection_draws_what_the_full_sort_draws(
    seed: int, position: int, spread: float, is_coarse: bool, **filters: Any
) -> None:
    logits = random_logits(3000, seed=seed % 1000, spread=spread)
    if is_coarse:  # ties everywhere
        logits = logits.round()
    state = state_of([1] * position, seed=seed, **filters)
    assert drawn_id(logits, state) == expected_id(logits, state)


def test_greedy_takes_the_lowest_id_at_ties() -> None:
    logits = torch.zeros(SMALL)
    logits[[11, 5, 30]] = 3.0
    assert drawn_id(logits, state_of(temperature=0.0)) == 5
    assert drawn_id(logits, state_of(temperature=0.0, logit_bias=((30, 0.0),))) == 5


def test_top_k_cuts_ties_by_id() -> None:
    logits = torch.zeros(SMALL)
    drawn = {drawn_id(logits, state_of(seed=seed, top_k=3)) for seed in range(200)}
    assert drawn == {0, 1, 2}


@pytest.mark.parametrize("top_k", [-1, 0, LARGE, LARGE + 1, 9_999_999])
def test_top_k_outside_the_vocabulary_is_off(top_k: int) -> None:
    logits = random_logits(LARGE)
    for seed in range(20):
        assert drawn_id(logits, state_of(seed=seed, top_k=top_k)) == drawn_id(logits, state_of(seed=seed))


def test_top_k_1_is_greedy() -> None:
    for seed in range(20):
        logits = random_logits(LARGE, seed=seed)
        greedy = drawn_id(logits, state_of(temperature=0.0))
        assert drawn_id(logits, state_of(seed=seed, top_k=1, temperature=2.0)) == greedy


def test_a_row_does_not_depend_on_its_neighbours_or_its_slot() -> None:
    """Mixed: greedy, filters, penalties, a row that is not usable."""
    specs: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 42},
        {"top_k": 5, "seed": 1, "logprobs": 3},
        {"top_k": 9_999_999},
        {"top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3, "logprobs": 0},
        {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 0.5, "logprobs": 8},
        {"seed": 3},
    ]
    logits = torch.stack([random_logits(LARGE, seed=row) for row in range(len(specs))])
    logits[6, 100] = torch.nan
    states = [state_of([3, 1, 4, 1, 5], 2, **spec) for spec in specs]
    alone = [draw(row, state) for row, state in zip(logits, states, strict=True)]
    sampler = Sampler(LARGE)
    for turn in range(len(specs)):
        order = [(turn + 3 * row) % len(specs) for row in range(len(specs))]
        assert sampler.draw(logits[order], [states[i] for i in order]) == [alone[i] for i in order]
    assert [output.is_usable for output in alone] == [True] * 6 + [False]


def test_repetition_penalty_sees_prompt_and_output_presence_and_frequency_output_only() -> None:
    logits = torch.zeros(SMALL)
    logits[[4, 5, 6]] = torch.tensor([2.0, 1.9, 1.8])
    prompt, output = [4], [5]
    assert drawn_id(logits, state_of(prompt + output, 1, temperature=0.0)) == 4
    assert drawn_id(logits, state_of(prompt + output, 1, temperature=0.0, repetition_penalty=1.3)) == 6
    assert drawn_id(logits, state_of(prompt + output, 1, temperature=0.0, presence_penalty=2.0)) == 4
    assert drawn_id(logits, state_of([5, 4], 1, temperature=0.0, presence_penalty=2.0)) == 5
    assert drawn_id(logits, state_of([9, 4, 4, 5], 1, temperature=0.0, frequency_penalty=0.11)) == 6
    assert drawn_id(logits, state_of([4, 4, 4, 5], 3, temperature=0.0, frequency_penalty=0.11)) == 4


def test_penalties_are_the_published_formulas() -> None:
    """Read back through top-k 2 odds: positive divided, negative multiplied, counts times frequency."""
    logits = torch.tensor([1.0, -1.0, 0.5, -9.0])
    state = state_of(
        [3, 0, 0, 1],
        1,
        repetition_penalty=2.0,
        presence_penalty=0.25,
        frequency_penalty=0.125,
        logit_bias=((2, 1.5),),
    )
    scores = logits.double().numpy().copy()
    sampler_module._adjust(scores, state)
    assert scores.tolist() == [0.5 - 0.25 - 0.25, -2.0 - 0.25 - 0.125, 2.0, -18.0]


def test_a_state_built_at_once_equals_one_that_grew() -> None:
    """So a resumed or cached sequence is penalised as an undisturbed one."""
    options: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.3}
    grown = state_of([1, 2, 3], 3, seed=5, **options)
    for step in range(40):
        logits = random_logits(60, seed=step)
        resumed = state_of(list(grown.ids), 3, seed=5, **options)
        assert draw(logits, resumed) == draw(logits, grown)
        grown.append(drawn_id(logits, grown))
    assert grown.num_output_tokens == 40


def test_stop_ids_are_masked_until_min_tokens_whatever_their_bias() -> None:
    logits = random_logits(SMALL)
    options: dict[str, Any] = {
        "temperature": 0.0,
        "stop_ids": frozenset({2, 9}),
        "min_tokens": 3,
        "logit_bias": ((2, 100.0), (9, 90.0)),
    }
    drawn = [drawn_id(logits, state_of([5] * (4 + count), 4, **options)) for count in range(5)]
    assert 2 not in drawn[:3]
    assert 9 not in drawn[:3]
    assert drawn[3:] == [2, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_spoil_their_row_alone(value: float, temperature: float) -> None:
    logits = torch.stack([random_logits(SMALL, seed=row) for row in range(3)])
    logits[1, 17] = value
    outputs = Sampler(SMALL).draw(logits, [state_of(temperature=temperature, logprobs=2) for _ in range(3)])
    assert [output.is_usable for output in outputs] == [True, False, True]
    assert (outputs[1].ids, outputs[1].logprobs) == ((), None)
    assert outputs[0] == draw(logits[0], state_of(temperature=temperature, logprobs=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_to_the_extreme(temperature: float) -> None:
    logits = random_logits(SMALL)

    def biased(bias: float, ids: range = range(SMALL)) -> RowOutput:
        bias_of_all = tuple((token_id, bias) for token_id in ids)
        return draw(logits, state_of(temperature=temperature, logit_bias=bias_of_all))

    assert not biased(-math.inf).is_usable
    assert not biased(math.inf).is_usable
    assert not biased(math.inf, range(3, 4)).is_usable
    assert biased(-100.0) == draw(logits, state_of(temperature=temperature))
    assert biased(1e38, range(3, 4)).ids == (3,)
    assert biased(-math.inf, range(1, SMALL)).ids == (0,)


def test_all_masked_by_min_tokens_is_not_usable() -> None:
    stop_ids = frozenset(range(SMALL))
    assert not draw(random_logits(SMALL), state_of(min_tokens=2, stop_ids=stop_ids)).is_usable


@pytest.mark.parametrize("filters", [{}, {"top_k": 30}, {"top_p": 0.99}, {"min_p": 1e-300}])
def test_the_largest_u_draws_no_masked_id(monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]) -> None:
    largest: Callable[[int, int, int], float] = lambda *_: 1 - 2.0**-53  # noqa: E731
    monkeypatch.setattr(sampler_module, "uniform", largest)
    for seed in range(50):
        logits = random_logits(SMALL, seed=seed)
        masked = tuple((token_id, -math.inf) for token_id in range(10, SMALL))
        assert drawn_id(logits, state_of(logit_bias=masked, **filters)) < 10


def test_ids_beyond_the_vocabulary_are_never_drawn() -> None:
    logits = torch.cat((random_logits(SMALL), torch.full((8,), 50.0)))[None]
    logits[0, SMALL + 3] = torch.nan
    for temperature in (0.0, 1.0):
        state = state_of(temperature=temperature, logprobs=SMALL + 8)
        (output,) = Sampler(SMALL).draw(logits, [state])
        assert output.is_usable
        assert output == draw(logits[0, :SMALL], state)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = random_logits(SMALL)
    expected = logits.double().log_softmax(0)
    state = state_of(temperature=0.3, top_k=2, logprobs=4, logit_bias=((8, 50.0),), repetition_penalty=1.5)
    output = draw(logits, state)
    assert output.logprobs is not None
    (logprobs,) = output.logprobs
    assert logprobs.ids == (8, *expected.argsort(descending=True)[:4].tolist())
    assert np.allclose(logprobs.values, expected[list(logprobs.ids)], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("asked", "given"), [(None, None), (0, 1), (3, 4), (SMALL, SMALL + 1), (10**6, SMALL + 1)]
)
def test_number_of_logprobs(asked: int | None, given: int | None) -> None:
    logprobs = draw(random_logits(SMALL), state_of(logprobs=asked)).logprobs
    assert (None if logprobs is None else len(logprobs[0].ids)) == given


def test_bfloat16_logits_are_taken() -> None:
    logits = random_logits(SMALL).bfloat16()
    assert drawn_id(logits, state_of(seed=1)) == drawn_id(logits.float(), state_of(seed=1))
