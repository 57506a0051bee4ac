"""Faults of sampling that show only on real logits: the default model in fp32 on the torch executor."""

from collections import Counter
from collections.abc import Iterator

import pytest

from pagemesh import Answer, CachePolicy, FinishReason, Options, RawText, collect
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.sampling_ways import WAYS, ids_of, run_way
from tests.support.twins import stream

NUM_SLOTS = 4
SETTINGS = {"engine": {"max_sequences": NUM_SLOTS, "chunk_tokens": 16, "kv_memory_mib": 128}}
CAPITAL = "What is the capital of France?"
CAPITAL_ANSWER = "The capital of France is Paris."
WEEK = RawText(
    "The list of the seven days of the week, twice. Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, "
    "Sunday, Monday, Tuesday,"
)
"""Goes on with a day that it holds already, by less than such penalties take away."""
EOS = 2
NUM_LIKELIEST = 20


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(engines=1, executor="torch", settings=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    baseline = Baseline(mesh)
    yield
    baseline.check()


SEEDED = Options(seed=42, temperature=0.8, max_tokens=8, ignore_eos=True)
REPEATED = Options(temperature=0.0, seed=1, repetition_penalty=1.3, max_tokens=8, ignore_eos=True)
GREEDY = Options(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=NUM_LIKELIEST)


@pytest.fixture(scope="module")
def cold(mesh: Mesh) -> dict[str, Answer]:
    """Every request alone, before anything is cached."""
    with mesh.client() as client:
        return {
            "seeded": client.collect(CAPITAL, cache_policy=CachePolicy.BYPASS, **SEEDED),
            "repeated": client.collect(WEEK, cache_policy=CachePolicy.BYPASS, **REPEATED),
            "greedy": client.collect(WEEK, cache_policy=CachePolicy.BYPASS, **GREEDY),
        }


@pytest.mark.parametrize("way", WAYS)
async def test_a_seed_whatever_the_neighbours(mesh: Mesh, cold: dict[str, Answer], way: str) -> None:
    """E01: an unseeded neighbour, another slot, a warm prefix or a preemption change no draw."""
    async with mesh.async_client() as client:
        assert ids_of(await run_way(way, client, CAPITAL, SEEDED, NUM_SLOTS)) == ids_of(cold["seeded"])


@pytest.mark.parametrize("way", ["beside-unseeded", "warm", "preempted"])
async def test_a_repetition_penalty_sees_the_whole_prompt(
    mesh: Mesh, cold: dict[str, Answer], way: str
) -> None:
    """E06: computed in chunks beside others, found in the cache, or computed again."""
    async with mesh.async_client() as client:
        assert ids_of(await run_way(way, client, WEEK, REPEATED, NUM_SLOTS)) == ids_of(cold["repeated"])
    without = cold["greedy"].choices[0].ids[0]
    assert without != cold["repeated"].choices[0].ids[0], "the penalty has to matter"
    assert without in cold["greedy"].started.prompt_ids


@pytest.mark.parametrize("penalties", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}], ids=str)
async def test_other_penalties_see_the_output_only(
    mesh: Mesh, cold: dict[str, Answer], penalties: Options
) -> None:
    """E06: the prompt is full of the answer's tokens, and that does not count."""
    plain = cold["greedy"]
    async with mesh.async_client() as client:
        first = await client.collect(WEEK, **GREEDY, **penalties)
        second = await client.collect(WEEK, **GREEDY, **penalties)
    assert second.usage.cached_tokens > 0 and ids_of(second) == ids_of(first)
    check_penalties(second, **penalties)
    assert second.choices[0].ids[0] == plain.choices[0].ids[0] in plain.started.prompt_ids
    assert second.choices[0].ids != plain.choices[0].ids, "the penalty has to matter"
    with pytest.raises(AssertionError):
        check_penalties(plain, **penalties)


def check_penalties(answer: Answer, presence_penalty: float = 0.0, frequency_penalty: float = 0.0) -> None:
    """Each greedy choice is the best of the likeliest, less what their occurrences in the output cost."""
    counts: Counter[int] = Counter()
    for entry in answer.choices[0].logprobs:
        scores = {
            candidate.token_id: candidate.logprob
            - presence_penalty * (counts[candidate.token_id] > 0)
            - frequency_penalty * counts[candidate.token_id]
            for candidate in entry.top
        }
        assert entry.chosen.token_id == max(scores, key=lambda token_id: scores[token_id])
        counts[entry.chosen.token_id] += 1


async def test_the_end_ignored(mesh: Mesh) -> None:
    """E09: exactly 64 tokens of a prompt whose answer has eight."""
    async with mesh.async_client() as client:
        natural = await client.collect(CAPITAL, temperature=0.0, max_tokens=64)
        assert (natural.text, natural.choices[0].stop_reason) == (CAPITAL_ANSWER, EOS)
        ignored = await client.collect(CAPITAL, temperature=0.0, max_tokens=64, ignore_eos=True)
    choice = ignored.choices[0]
    assert len(choice.ids) == ignored.usage.completion_tokens == 64
    assert (choice.finish_reason, choice.stop_reason) == (FinishReason.LENGTH, None)
    assert choice.ids[: len(natural.choices[0].ids)] == natural.choices[0].ids


@pytest.mark.parametrize(
    ("stop", "reason", "num_tokens"),
    [
        pytest.param({"logit_bias": {EOS: 100.0}}, EOS, 11, id="eos-by-bias"),
        pytest.param({"stop_ids": [55], "logit_bias": {55: 100.0}}, 55, 11, id="stop-id-by-bias"),
        pytest.param({"stop": "France"}, None, 12, id="stop-text"),
    ],
)
async def test_nothing_stops_before_min_tokens(
    mesh: Mesh, stop: Options, reason: int | None, num_tokens: int
) -> None:
    """E09: what stops it is told."""
    async with mesh.async_client() as client:
        events = await stream(client, CAPITAL, temperature=0.0, min_tokens=10, max_tokens=12, **stop)
    choice = collect(events).choices[0]
    assert len(choice.ids) == num_tokens and not {EOS, reason} & set(choice.ids[:10])
    assert choice.text.startswith(CAPITAL_ANSWER) and choice.stop_reason == reason
    assert choice.finish_reason is (FinishReason.LENGTH if reason is None else FinishReason.STOP)
