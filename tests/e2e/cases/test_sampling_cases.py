"""Faults of sampling from the field: on scripted logits exactly, and on a tiny model with a broken weight."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from grpc import StatusCode
from safetensors.torch import load_file, save_file

from pagemesh import (
    CachePolicy,
    Event,
    FinishReason,
    Options,
    PagemeshError,
    RawText,
    TokenIds,
    collect,
)
from pagemesh.v1 import gateway_pb2
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.sampling_ways import WAYS, ids_of, neighbours, run_way
from tests.support.tiny_models import EMBEDDING_SIZE, VOCAB_SIZE, make_tiny_model
from tests.support.twins import said, stream

VOCABULARY = 49_152
NUM_SLOTS = 4
PROMPT = "What is the capital of France?"
EOS = 2
BROKEN_ID = 100
"""Of the tiny model: its embedding is NaN."""
HEALTHY = Options(seed=1, logit_bias={BROKEN_ID: -100.0})
TINY_EOS = (0, EOS, 64, VOCAB_SIZE - 1)
"""Some of the ids that three files of the tiny model name as its end."""


@pytest.fixture(scope="module")
def scripted() -> Iterator[Mesh]:
    with Mesh(engines=1, settings={"engine": {"max_sequences": NUM_SLOTS}}) as running:
        yield running


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A real executor on a model of 259 ids, with a pool so small that blocks are soon used again."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), tie_word_embeddings=False, eos_token_id=0)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BROKEN_ID] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    generation = json.loads((folder / "generation_config.json").read_text())
    generation["eos_token_id"] = list(range(64, VOCAB_SIZE))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    settings = {"engine": {"max_sequences": NUM_SLOTS, "num_blocks": 33}}
    with Mesh(engines=1, executor="torch", model=folder, settings=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    meshes = [request.getfixturevalue(name) for name in ("scripted", "tiny") if name in request.fixturenames]
    baselines = [Baseline(mesh) for mesh in meshes]
    yield
    for baseline in baselines:
        baseline.check()


SEEDED = Options(seed=42, temperature=0.8, max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("way", WAYS)
async def test_a_seed_whatever_the_neighbours(scripted: Mesh, way: str) -> None:
    """E01, with no allowance; five times each."""
    async with scripted.async_client() as client:
        expected = ids_of(await client.collect(PROMPT, cache_policy=CachePolicy.BYPASS, **SEEDED))
        other = await client.collect(PROMPT, **{**SEEDED, "seed": 43})
        assert ids_of(other) != expected
        for _ in range(5):
            assert ids_of(await run_way(way, client, PROMPT, SEEDED, NUM_SLOTS)) == expected


@pytest.mark.parametrize("top_k", [-1, 0, VOCABULARY, VOCABULARY + 1, 9_999_999, 2**63 - 1])
async def test_top_k_that_means_off(scripted: Mesh, top_k: int) -> None:
    """E03."""
    async with scripted.async_client() as client:
        plain = await client.collect(PROMPT, **SEEDED)
        assert said(await client.collect(PROMPT, top_k=top_k, **SEEDED)) == said(plain)


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-38}, {"min_p": 1.0}, {"temperature": 1e-45}, {"temperature": 1e-30}],
    ids=str,
)
async def test_filters_that_leave_one_token(scripted: Mesh, options: Options) -> None:
    """E03: however it is said, it is greedy."""
    async with scripted.async_client() as client:
        greedy = await client.collect(PROMPT, temperature=0.0, max_tokens=16)
        asked: Options = {"temperature": 1.5, "max_tokens": 16, **options}
        assert ids_of(await client.collect(PROMPT, **asked)) == ids_of(greedy)


async def test_greedy_beside_top_k(scripted: Mesh) -> None:
    """E03: each row of a batch is filtered by its own numbers."""
    rows = [
        Options(temperature=0.0, max_tokens=32),
        Options(top_k=5, seed=1, max_tokens=32),
        Options(top_k=9_999_999, seed=2, max_tokens=32),
        Options(seed=3, max_tokens=32),
    ]
    async with scripted.async_client() as client:
        alone = [await client.collect(PROMPT, **row) for row in rows]
        together = await asyncio.gather(*(client.collect(PROMPT, **row) for row in rows))
    assert [ids_of(answer) for answer in together] == [ids_of(answer) for answer in alone]


def with_id(place: str, token_id: int) -> gateway_pb2.GenerateRequest:
    """A request that names the id there."""
    request = gateway_pb2.GenerateRequest(max_tokens=2, seed=1)
    request.sampling.ignore_eos = True
    request.ids.ids.append(token_id if place == "ids.ids[0]" else 50)
    if place == "stop.ids[0]":
        request.stop.ids.append(token_id)
    if place == "sampling.logit_bias[0].token_id":
        request.sampling.logit_bias.add(token_id=token_id, bias=-1.0)
    return request


@pytest.mark.parametrize(
    "token_id", [-1, VOCAB_SIZE, EMBEDDING_SIZE - 1, EMBEDDING_SIZE, 2**31 - 1, 2**63 - 1]
)
@pytest.mark.parametrize("place", ["ids.ids[0]", "stop.ids[0]", "sampling.logit_bias[0].token_id"])
async def test_an_id_that_no_token_has(tiny: Mesh, place: str, token_id: int) -> None:
    """E04: ids of a padded embedding's unused rows among them. The last id is good; neighbours go on."""
    async with tiny.async_client() as client, neighbours(client, RawText("a sea"), HEALTHY):
        error = await failure(client.stream(with_id(place, token_id)))
        assert (error.code, error.reason, error.field) == (
            StatusCode.INVALID_ARGUMENT,
            "INVALID_FIELD",
            place,
        )
        assert f"0..{VOCAB_SIZE - 1}" in error.message and str(token_id) in error.message
        good = [event async for event in client.stream(with_id(place, VOCAB_SIZE - 1))]
        assert collect(good).usage.completion_tokens in {1, 2}


async def failure(events: Any) -> PagemeshError:
    with pytest.raises(PagemeshError) as caught:
        async for _ in events:
            pass
    return caught.value


async def test_the_model_limit(tiny: Mesh) -> None:
    """E04: no position beyond the last."""
    async with tiny.async_client() as client:
        whole = await client.collect(TokenIds((50,) * 500), max_tokens=12, ignore_eos=True, **HEALTHY)
        assert whole.usage.total_tokens == 512
        error = await failure(client.generate(TokenIds((50,) * 500), max_tokens=13))
        assert (error.reason, error.field) == ("TOO_LONG", "max_tokens")
        error = await failure(client.generate(TokenIds((50,) * 513)))
        assert (error.reason, error.field) == ("TOO_LONG", "prompt")


def bad_logits(mesh: Mesh) -> float:
    return mesh.metrics("engine-0").total("pagemesh_engine_ended_total", reason="bad_logits")


def cached_blocks(mesh: Mesh) -> float:
    return mesh.metrics("engine-0").value("pagemesh_engine_kv_blocks", state="cached")


def check_bad_logits(error: PagemeshError) -> None:
    assert (error.code, error.reason) == (StatusCode.INTERNAL, "BAD_LOGITS")
    assert error.receipt is not None and error.receipt.prompt_tokens > 0


async def test_logits_that_are_no_numbers_midway(scripted: Mesh) -> None:
    """E07: the tokens before were good, the stream ends in an error, and only that stream."""
    bad, good = TokenIds((7, 8, 9)), TokenIds((7, 8, 10))
    output = list(range(2_000, 2_030))
    poisoned = [
        {"prompt_ids": list(bad.ids), "output_ids": output, "nan_at": 20},
        {"prompt_ids": list(good.ids), "output_ids": output, "step_ms": 2},
    ]
    count = bad_logits(scripted)
    scripted.write_script({"scripts": poisoned})
    async with scripted.async_client() as client:
        heard: list[Event] = []

        async def listen() -> None:
            async for event in client.generate(bad, max_tokens=30):
                heard.append(event)

        beside = asyncio.gather(*(client.collect(good, max_tokens=30) for _ in range(2)))
        with pytest.raises(PagemeshError) as caught:
            await listen()
        check_bad_logits(caught.value)
        assert [token_id for event in heard[1:] for token_id in event.ids] == output[:20]  # type: ignore[union-attr]
        assert [ids_of(answer) for answer in await beside] == [[tuple(output)]] * 2
        assert bad_logits(scripted) == count + 1
        scripted.write_script({"scripts": [poisoned[0] | {"nan_at": None}]})
        assert ids_of(await client.collect(bad, max_tokens=30)) == [tuple(output)]
    scripted.write_script({})


async def test_a_broken_weight(tiny: Mesh) -> None:
    """E07: whoever meets it gets an error; its keys and values are neither shared nor left in a block."""
    count = bad_logits(tiny)
    healthy = TokenIds(tuple(range(3, 99)) * 4)
    sick = [TokenIds((*healthy.ids[:32], BROKEN_ID, *healthy.ids[:length])) for length in (0, 1, 200)]
    options = Options(temperature=0.0, max_tokens=24, ignore_eos=True, logit_bias={BROKEN_ID: -100.0})
    async with tiny.async_client() as client:
        expected = ids_of(await client.collect(healthy, cache_policy=CachePolicy.BYPASS, **options))
        before = cached_blocks(tiny)
        async with neighbours(client, RawText("a hill"), {**HEALTHY, "cache_policy": CachePolicy.BYPASS}):
            for prompt in sick * 2:
                check_bad_logits(await failure(client.generate(prompt, **options)))
        assert bad_logits(tiny) == count + 2 * len(sick)
        assert cached_blocks(tiny) == before
        for policy in (CachePolicy.BYPASS, CachePolicy.USE, CachePolicy.USE):
            assert ids_of(await client.collect(healthy, cache_policy=policy, **options)) == expected


async def test_a_broken_weight_met_by_a_draw(tiny: Mesh) -> None:
    """E07: the broken token itself may be drawn; what follows it cannot be."""
    bias = {BROKEN_ID: 100.0}
    async with tiny.async_client() as client:
        one = await client.collect(RawText("a"), max_tokens=1, logit_bias=bias, ignore_eos=True)
        assert one.choices[0].ids == (BROKEN_ID,)
        events: list[Event] = []
        with pytest.raises(PagemeshError) as caught:
            async for event in client.generate(RawText("a"), max_tokens=5, logit_bias=bias, ignore_eos=True):
                events.append(event)
    check_bad_logits(caught.value)
    assert [event.ids for event in events[1:]] == [(BROKEN_ID,)]  # type: ignore[union-attr]


async def test_every_token_masked(tiny: Mesh) -> None:
    """E07: an error, not token 0: every id is a stop id, and none may be drawn before min_tokens."""
    stop_ids = [token_id for token_id in range(64) if token_id not in TINY_EOS]
    async with tiny.async_client() as client:
        masked = client.generate(RawText("a"), max_tokens=5, min_tokens=2, stop_ids=stop_ids)
        check_bad_logits(await failure(masked))
        free = await client.collect(RawText("a"), max_tokens=5, stop_ids=stop_ids, **HEALTHY)
        assert free.usage.completion_tokens == 1


async def test_the_same_bias_on_every_token(tiny: Mesh) -> None:
    """E07: as far down as it goes, and it changes nothing."""
    asked = Options(temperature=0.0, max_tokens=12, ignore_eos=True)
    async with tiny.async_client() as client:
        plain = await client.collect(RawText("a"), **asked)
        biased = await client.collect(
            RawText("a"), logit_bias=dict.fromkeys(range(VOCAB_SIZE), -100.0), **asked
        )
    assert ids_of(biased) == ids_of(plain)


@pytest.mark.parametrize("eos_id", TINY_EOS)
async def test_the_ends_of_all_files_count(tiny: Mesh, eos_id: int) -> None:
    """E09: config.json, generation_config.json and tokenizer_config.json each name others."""
    asked = Options(temperature=0.0, max_tokens=3, logit_bias={eos_id: 100.0})
    async with tiny.async_client() as client:
        ended = await client.collect(RawText("a"), **asked)
        assert (ended.choices[0].ids, ended.choices[0].stop_reason) == ((eos_id,), eos_id)
        ignored = await client.collect(RawText("a"), ignore_eos=True, **asked)
        assert (ignored.choices[0].ids, ignored.choices[0].stop_reason) == ((eos_id,) * 3, None)


async def test_eos_ignored_to_the_last_token(scripted: Mesh) -> None:
    """E09: exactly max_tokens, whatever is drawn."""
    asked = Options(temperature=0.0, max_tokens=64, logit_bias={EOS: 100.0})
    async with scripted.async_client() as client:
        answer = await client.collect(PROMPT, ignore_eos=True, **asked)
        assert answer.choices[0].ids == (EOS,) * 64
        assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == (FinishReason.LENGTH, None)
        assert (await client.collect(PROMPT, **asked)).choices[0].ids == (EOS,)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        pytest.param({}, EOS, id="eos"),
        pytest.param({"ignore_eos": True, "stop_ids": [EOS]}, EOS, id="stop-id"),
        pytest.param({"stop_ids": [EOS, 55]}, EOS, id="both"),
    ],
)
async def test_nothing_stops_before_min_tokens(scripted: Mesh, stop: Options, reason: int) -> None:
    """E09: an id that would win every draw wins the first after so many others."""
    async with scripted.async_client() as client:
        events = await stream(
            client, PROMPT, min_tokens=10, max_tokens=30, seed=5, logit_bias={EOS: 100.0}, **stop
        )
    choice = collect(events).choices[0]
    assert len(choice.ids) == 11 and EOS not in choice.ids[:10]
    assert (choice.finish_reason, choice.stop_reason) == (FinishReason.STOP, reason)


async def test_min_tokens_and_a_stop_text(scripted: Mesh) -> None:
    """E09: a text in every token stops at the first end that is allowed."""
    async with scripted.async_client() as client:
        asked = Options(max_tokens=30, temperature=0.0, logit_bias={55: 100.0}, stop="G")
        early = await client.collect(PROMPT, **asked)
        late = await client.collect(PROMPT, min_tokens=10, **asked)
        long = await client.collect(PROMPT, min_tokens=10, **{**asked, "stop": "GGGG"})
    assert (early.choices[0].ids, early.text) == ((55,), "")
    assert (late.choices[0].ids, late.text, late.choices[0].stop_reason) == ((55,) * 10, "G" * 9, "G")
    assert (long.choices[0].ids, long.text, long.choices[0].stop_reason) == ((55,) * 10, "G" * 6, "GGGG")


async def test_an_end_at_the_very_last_token(scripted: Mesh) -> None:
    """E09: it is told as the stop that it is, unless it may not stop yet."""
    eos, text = Options(logit_bias={EOS: 100.0}), Options(logit_bias={55: 100.0}, stop="GGG")
    async with scripted.async_client() as client:
        for asked, reason in ((Options(min_tokens=3), EOS), (Options(min_tokens=4), None)):
            last = await client.collect(PROMPT, max_tokens=4, temperature=0.0, **eos, **asked)
            assert (len(last.choices[0].ids), last.choices[0].stop_reason) == (4, reason)
        last = await client.collect(PROMPT, max_tokens=3, temperature=0.0, **text)
    assert (last.choices[0].ids, last.text, last.choices[0].stop_reason) == ((55,) * 3, "", "GGG")
