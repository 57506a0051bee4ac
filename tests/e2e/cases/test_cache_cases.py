"""Faults of cached and shared blocks from the field: reuse changes no answer, loses no block, tells nobody.

The scripted executor draws from what it reads back through the block table, so a wrong or stale block shows.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Unpack

import pytest
import torch

from pagemesh import Answer, AsyncClient, CachePolicy, Options, TokenChunk, TokenIds, generate_request
from services.contract.block_hash import block_hashes
from services.contract.model_folder import resolve_model
from services.gateway.access.identity import Identities, hash_api_key
from services.gateway.access.salt import cache_salt
from services.gateway.spec.generation_spec import CacheScope
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.metrics import Metrics
from tests.support.oracle import Oracle
from tests.support.workload import prompts

BLOCK = 16
STEP_TOKENS = 128
KEYS = {"tenant-a": "key-of-a", "tenant-b": "key-of-b"}
DEPLOYMENT_KEY = "test"
NUM_TIGHT_BLOCKS = 56
POISON = {"poison_freed_blocks": True}
SCRIPT = {"vocab_size": 512}
"""Fewer ids are drawn in less time."""
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def real() -> Iterator[Mesh]:
    """The default model."""
    settings = {"engine": {**POISON, "max_batch_tokens": STEP_TOKENS}}
    with Mesh(engines=1, executor="torch", settings=settings) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """On one thread: short prompts gain nothing from more, and the mesh needs the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Oracle(resolve_model("smollm2"))
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Room for all, and two tenants."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("".join(f"{tenant} {hash_api_key(key)}\n" for tenant, key in KEYS.items()))
    gateway = {"api_keys_file": keys, "deployment_key": DEPLOYMENT_KEY}
    settings = {
        "engine": {**POISON, "max_batch_tokens": STEP_TOKENS, "num_blocks": 4_097},
        "gateway": gateway,
    }
    with Mesh(engines=1, settings=settings, script=SCRIPT) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def tight() -> Iterator[Mesh]:
    """A pool of 56 blocks."""
    settings = {"engine": {**POISON, "num_blocks": NUM_TIGHT_BLOCKS + 1}}
    with Mesh(engines=1, settings=settings, script={**SCRIPT, "step_ms": 2}) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    names = sorted({"real", "roomy", "tight"} & set(request.fixturenames))
    baselines = [Baseline(request.getfixturevalue(name)) for name in names]
    yield
    for baseline in baselines:
        baseline.check()


def tenant(mesh: Mesh, name: str = "tenant-a") -> AsyncClient:
    return mesh.async_client(api_key=KEYS[name])


def prompt(seed: int, num_ids: int) -> TokenIds:
    """Its ids are drawn; prompts of one seed are prefixes of each other."""
    dice = random.Random(seed)
    return TokenIds(tuple(dice.randrange(3, 512) for _ in range(num_ids)))


async def ask(client: AsyncClient, asked: TokenIds, **options: Unpack[Options]) -> Answer:
    """Greedy and to the full length, unless said otherwise."""
    return await client.collect(asked, **{"temperature": 0.0, "ignore_eos": True, **options})  # type: ignore[misc]


def ids_of(answer: Answer) -> list[tuple[int, ...]]:
    return [choice.ids for choice in answer.choices]


def num_cached(answer: Answer) -> int:
    assert answer.receipt.cached_tokens == answer.usage.cached_tokens
    return answer.usage.cached_tokens


def full_hit(num_ids: int) -> int:
    """Ids of a prompt that its second run may find: never the last."""
    return BLOCK * ((num_ids - 1) // BLOCK)


async def scraped(mesh: Mesh) -> Metrics:
    return await asyncio.to_thread(mesh.metrics, "engine-0")


async def computed(mesh: Mesh) -> float:
    return (await scraped(mesh)).total("pagemesh_engine_computed_tokens_total")


def judge(oracle: Oracle, asked: TokenIds, answers: Sequence[Answer]) -> None:
    """Every answer is the oracle's but for ties."""
    for ids in {answer.choices[0].ids for answer in answers}:
        assert not oracle.judge_greedy(asked.ids, ids).wrong


# D01


async def test_twins_of_the_same_moment_read_only_what_was_computed(real: Mesh, oracle: Oracle) -> None:
    """D01: 32 cold and equal prompts are one prefill, and all say what the oracle says."""
    asked = TokenIds(prompts(resolve_model("smollm2"), (100,))[0])
    async with real.async_client() as client:
        before = await computed(real)
        answers = await asyncio.gather(*(ask(client, asked, max_tokens=6) for _ in range(32)))
        num_rows = await computed(real) - before
    judge(oracle, asked, answers)
    assert sorted(map(num_cached, answers)) == [0, *[96] * 31]
    assert num_rows == 100 + 31 * 4 + 32 * 5


async def cancel_in_prefill(mesh: Mesh, client: AsyncClient, asked: TokenIds) -> None:
    """Leaves once some of the prompt has been computed, and some not."""
    before = await computed(mesh)
    request = asyncio.create_task(ask(client, asked, max_tokens=6))
    while (num_rows := await computed(mesh) - before) < STEP_TOKENS:
        assert not request.done()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    assert num_rows < len(asked.ids), "the prefill was over"


async def test_a_prefill_that_was_cancelled_leaves_nothing_wrong(real: Mesh, oracle: Oracle) -> None:
    """D01: its finished blocks serve the next caller, its unfinished ones nobody."""
    asked = TokenIds(prompts(resolve_model("smollm2"), (100, 500))[1])
    async with real.async_client() as client:
        await cancel_in_prefill(real, client, asked)
        again = await ask(client, asked, max_tokens=6)
    judge(oracle, asked, [again])
    assert 0 < num_cached(again) < full_hit(500) and num_cached(again) % BLOCK == 0


async def test_cancelled_prefills_of_long_prompts_with_waiting_twins(roomy: Mesh) -> None:
    """D01: the twin that waited for the cancelled owner's blocks computes them itself."""
    roomy.write_script({**SCRIPT, "step_ms": 10})
    try:
        async with tenant(roomy) as client:
            for seed in range(3):
                asked = prompt(seed, 2_000)
                alone = await ask(client, asked, max_tokens=6, cache_policy=CachePolicy.BYPASS)
                owner = asyncio.create_task(cancel_in_prefill(roomy, client, asked))
                twins = [asyncio.create_task(ask(client, asked, max_tokens=6)) for _ in range(4)]
                await owner
                answers = [*(await asyncio.gather(*twins)), await ask(client, asked, max_tokens=6)]
                assert [ids_of(answer) for answer in answers] == [ids_of(alone)] * 5
                assert num_cached(answers[-1]) == full_hit(2_000)
    finally:
        roomy.write_script(SCRIPT)


# D03


async def test_a_tenant_never_finds_what_another_has_cached(roomy: Mesh) -> None:
    """D03: neither the whole prompt nor any guess of a part; the owner finds it all."""
    secret = prompt(77, 130)
    async with tenant(roomy, "tenant-a") as owner, tenant(roomy, "tenant-b") as thief:
        assert num_cached(await ask(owner, secret, max_tokens=2)) == 0
        guesses = [TokenIds((*secret.ids[: BLOCK * k], 5, 6, 7)) for k in range(1, 9)]
        for guess in (secret, *guesses):
            answer = await ask(thief, guess, max_tokens=2, cache_policy=CachePolicy.READ_ONLY)
            assert num_cached(answer) == 0
            assert answer.receipt.computed_tokens == len(guess.ids) + 1
        assert num_cached(await ask(owner, secret, max_tokens=2)) == full_hit(130)
        for number, guess in enumerate(guesses, start=1):
            answer = await ask(owner, guess, max_tokens=2, cache_policy=CachePolicy.READ_ONLY)
            assert num_cached(answer) == BLOCK * number


async def test_no_field_of_a_request_names_another_tenants_cache(roomy: Mesh) -> None:
    """D03: the salt comes from who called, whatever bytes the body brings along."""
    secret = prompt(78, 130)
    a = Identities(DEPLOYMENT_KEY.encode(), {hash_api_key(KEYS["tenant-a"]): "tenant-a"}).authenticate(
        f"Bearer {KEYS['tenant-a']}"
    )
    salt = cache_salt(DEPLOYMENT_KEY.encode(), a, CacheScope.TENANT)
    options = Options(temperature=0.0, ignore_eos=True, max_tokens=2, request_id="the-same")
    request = generate_request(secret, cache_policy=CachePolicy.READ_ONLY, **options)
    for number in (13, 100):  # of the salt in the engine's own message, and one that nobody has
        tag = (number << 3) | 2
        salted = bytes([tag & 0x7F | 0x80, tag >> 7, len(salt)]) + salt
        # A field of another kind is kept as an unknown one, and travels with the message.
        request.MergeFromString(salted)
    assert request.SerializeToString().count(salt) == 2
    async with tenant(roomy, "tenant-a") as owner, tenant(roomy, "tenant-b") as thief:
        await owner.collect(secret, **options)
        events = [event async for event in thief.stream(request)]
        assert events[-1].usage.cached_tokens == 0  # type: ignore[union-attr]
        assert num_cached(await owner.collect(secret, **{**options, "request_id": "next"})) == full_hit(130)  # type: ignore[typeddict-item]


# D04


async def test_a_full_hit_leaves_the_last_token_to_compute(real: Mesh, oracle: Oracle) -> None:
    """D04: around every multiple of a block; rows through the model = ids less hits."""
    lengths = (15, 16, 17, 31, 32, 33, 48)
    async with real.async_client() as client:
        for ids in prompts(resolve_model("smollm2"), lengths):
            asked = TokenIds(ids)
            cold = await ask(client, asked, max_tokens=4)
            before = await computed(real)
            warm = await ask(client, asked, max_tokens=4)
            num_rows = await computed(real) - before
            judge(oracle, asked, [cold, warm])
            assert (num_cached(cold), num_cached(warm)) == (0, full_hit(len(ids)))
            assert warm.receipt.computed_tokens == num_rows == len(ids) - num_cached(warm) + 3
    assert [full_hit(length) for length in lengths] == [0, 0, 16, 16, 16, 32, 32]


# D05


async def test_two_thousand_requests_lose_no_block(roomy: Mesh) -> None:
    """D05: every remainder of a block, in the prompt and in the whole; nothing is used afterwards."""
    num_requests, num_callers = 2_000, 32
    waiting = iter(range(num_requests))
    expected: dict[tuple[int, int], tuple[int, ...]] = {}

    async def caller(client: AsyncClient) -> int:
        num_done = 0
        for number in waiting:
            num_ids, max_tokens = 1 + number % 48, (1, 15, 16, 17)[number // 48 % 4]
            seed = number // 192 % 3
            answer = await ask(client, prompt(seed, num_ids), max_tokens=max_tokens)
            (ids,) = ids_of(answer)
            longest = expected.setdefault((seed, num_ids), ids)
            assert len(ids) == max_tokens and all(map(int.__eq__, ids, longest))
            assert 0 <= num_cached(answer) <= full_hit(num_ids)
            if len(ids) > len(longest):
                expected[seed, num_ids] = ids
            num_done += 1
        return num_done

    before = await scraped(roomy)
    async with tenant(roomy) as client:
        num_done = sum(await asyncio.gather(*(caller(client) for _ in range(num_callers))))
    assert num_done == num_requests
    await asyncio.to_thread(roomy.wait_until, lambda: not blocks(roomy.metrics("engine-0"))["used"])
    after = await scraped(roomy)
    assert sum(blocks(after).values()) == sum(blocks(before).values()) == 4_096
    name = "pagemesh_engine_ended_total"
    assert after.value(name, reason="length") - before.value(name, reason="length") == num_requests


def blocks(metrics: Metrics) -> dict[str, float]:
    states = ("used", "cached", "free")
    return {state: metrics.value("pagemesh_engine_kv_blocks", state=state) for state in states}


# D08


async def read_until(stream: AsyncIterator[object], num_tokens: int) -> list[int]:
    """At least so many of its output ids."""
    ids: list[int] = []
    async for event in stream:
        ids += event.ids if isinstance(event, TokenChunk) else ()
        if len(ids) >= num_tokens:
            break
    return ids


async def test_blocks_in_use_are_not_evicted_in_a_full_pool(tight: Mesh, roomy: Mesh) -> None:
    """D08: two warm streams fill the pool, short prompts flood it, one stream is cut: 50 times."""
    num_ids, max_tokens, num_full = 24 * BLOCK, 4 * BLOCK, 2 * BLOCK + 1
    pair = [prompt(seed, num_ids) for seed in (80, 81)]
    async with tenant(roomy) as elsewhere:
        alone = [ids_of(await ask(elsewhere, asked, max_tokens=max_tokens))[0] for asked in pair]
    fullest, num_evictions = 0.0, await evictions(tight)
    async with tight.async_client() as client:
        for turn in range(50):
            survivor, victim = turn % 2, 1 - turn % 2
            options = Options(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
            flood = [ask(client, prompt(1_000 + 8 * turn + i, 20 + i), max_tokens=20) for i in range(8)]
            async with (
                aclosing(client.generate(pair[survivor], **options)) as kept,
                aclosing(client.generate(pair[victim], **options)) as cut,
            ):
                streams = [read_until(kept, num_full), read_until(cut, num_full)]
                shorts = [asyncio.create_task(short) for short in flood]
                ids, begun = await asyncio.gather(*streams)
                used = blocks(await scraped(tight))["used"]
                fullest = max(fullest, used / NUM_TIGHT_BLOCKS)
                await cut.aclose()
                ids += await read_until(kept, max_tokens)
            assert tuple(ids) == alone[survivor]
            assert tuple(begun) == alone[victim][: len(begun)]
            assert all(answer.usage.completion_tokens == 20 for answer in await asyncio.gather(*shorts))
    assert fullest >= 0.95
    assert await evictions(tight) > num_evictions, "the flood took no cached block"


async def evictions(mesh: Mesh) -> float:
    return (await scraped(mesh)).total("pagemesh_engine_evictions_total")


# D10


@asynccontextmanager
async def counters_only_rise(mesh: Mesh) -> AsyncIterator[None]:
    """Reads all metrics of the engine and the gateway over and over meanwhile."""
    is_over = asyncio.Event()

    async def watch(name: str) -> int:
        seen: dict[object, float] = {}
        num_scrapes = 0
        while not is_over.is_set():
            samples = (await asyncio.to_thread(mesh.metrics, name)).samples
            counters = {key: value for key, value in samples.items() if key[0].endswith("_total")}
            fallen = {key: value for key, value in counters.items() if value < seen.get(key, 0.0)}
            assert not fallen and seen.keys() <= counters.keys()
            seen, num_scrapes = counters, num_scrapes + 1
        return num_scrapes

    watchers = [asyncio.create_task(watch(name)) for name in ("engine-0", "gateway-0")]
    try:
        yield
    finally:
        is_over.set()
        assert min(await asyncio.gather(*watchers)) >= 2


async def test_the_account_holds_through_preemption_of_several_choices(tight: Mesh, roomy: Mesh) -> None:
    """D10: four choices share 500 ids and outgrow the pool, again and again."""
    asked = prompt(100, 500)
    options = Options(n=4, max_tokens=160, temperature=0.8, seed=5)
    async with tenant(roomy) as elsewhere:
        whole = await ask(elsewhere, asked, **options)
    assert whole.receipt.preemptions == 0
    async with tight.async_client() as client, counters_only_rise(tight):
        answers = [await ask(client, asked, **options) for _ in range(3)]
    for answer in answers:
        assert ids_of(answer) == ids_of(whole)
        assert answer.receipt.preemptions > 0
        assert 0 <= num_cached(answer) <= 499
        usage, receipt = answer.usage, answer.receipt
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (500, 640, 1140)
        assert 0 < receipt.recomputed_tokens < receipt.computed_tokens
    assert num_cached(answers[0]) == 0 and len(set(ids_of(whole))) == 4


# D11


async def ask_twice(client: AsyncClient, asked: TokenIds) -> tuple[str, list[Answer]]:
    """The engine that answered both times, and what it said."""
    answers = [await ask(client, asked, max_tokens=8) for _ in range(2)]
    (engine,) = {answer.receipt.engine_id for answer in answers}
    return engine, answers


async def test_a_cache_is_the_process_own_and_found_again_by_the_same_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D11: another engine, and one that starts anew, find nothing at first and all of it then."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    asked = prompt(110, 100)
    script = {**SCRIPT, "step_ms": 5}
    busy = Options(n=3, max_tokens=10_000, ignore_eos=True)
    async with Mesh(engines=2, script=script) as mesh, mesh.async_client() as client:
        async with aclosing(client.generate(prompt(111, 20), **busy)) as load:
            await read_until(load, 1)  # the other engine is now the one with less load
            one, answers = await ask_twice(client, asked)
        mesh.kill(one)
        other, more = await ask_twice(client, asked)
        assert {one, other} == {"engine-0", "engine-1"}
        mesh.start_again(one)
        await asyncio.to_thread(mesh.wait_ready, one)
        mesh.kill(other)
        again, most = await ask_twice(client, asked)
        assert again == one
    answers += more + most
    assert list(map(num_cached, answers)) == [0, full_hit(100)] * 3
    assert len({answer.choices[0].ids for answer in answers}) == 1
    assert len({answer.started.model_revision for answer in answers}) == 1


KEYS_OF_AN_ENGINE = """
import tempfile
from pathlib import Path
from tests.support.engine_driver import EngineDriver, write_script

with tempfile.TemporaryDirectory() as folder:
    driver = EngineDriver(write_script(Path(folder) / "script.json"))
    driver.output(list(range(1, 60)), max_output_tokens=2, salt=b"salt")
    names = driver.set.cache._block_of
print(*sorted(name.hex() for name in names))
"""


def test_keys_of_blocks_are_the_same_in_every_process() -> None:
    """D11: a new process indexes under the names that this one tells, each with a hash seed of its own."""
    expected = sorted(name.hex() for name in block_hashes(range(1, 60), BLOCK, b"salt", "r"))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        [sys.executable, "-c", KEYS_OF_AN_ENGINE],
        cwd=ROOT,
        env={**plain, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected and len(expected) == 3
