"""Kill anything, and the answer is the same: frozen, parted and killed processes under running streams."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pagemesh import AsyncClient, Event, Options, Resumed, TokenChunk, TokenIds, collect
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh, live_engines
from tests.support.tcp_proxy import TcpProxy
from tests.support.twins import Said, check_numbers, said

ENGINES = ("engine-0", "engine-1", "engine-2")
SLOTS = 16
NUM_TOKENS = 60
STEP_MS = 20
NUM_QUEUED = 20
SETTINGS = {
    "engine": {"max_sequences": SLOTS},
    "gateway": {"deployment_key": "one for all gateways", "encode_wait_s": 30},
}

Proxies = dict[str, TcpProxy]


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    """Between the gateways and each engine."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(TcpProxy()) for name in ENGINES}


@pytest.fixture(scope="module")
def mesh(proxies: Proxies) -> Iterator[Mesh]:
    """Two of everything, three engines."""
    settings = SETTINGS | {name: {"address": proxy.address} for name, proxy in proxies.items()}
    mesh = Mesh(engines=3, gateways=2, schedulers=2, tokenizers=2, settings=settings)
    for name, proxy in proxies.items():
        proxy.target = mesh.address(name)
    with mesh:
        yield mesh


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    before = Baseline(mesh)
    yield
    Baseline(mesh).check()  # a new one: processes were started anew
    assert not before.trouble()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    name: str
    prompt: TokenIds
    options: Options


def ask(name: str, number: int, **options: object) -> Ask:
    given: Options = {"max_tokens": NUM_TOKENS, "ignore_eos": True, **options}  # type: ignore[typeddict-item]
    return Ask(f"{name} {number}", TokenIds((504, 3575, 282, 1000 + number)), given)


GREEDY = [ask("greedy", i, temperature=0.0) for i in range(5)]
SEEDED = [ask("seeded", i, temperature=0.9, seed=i, top_p=0.9, repetition_penalty=1.2) for i in range(5)]
THREE = [ask("three choices", i, temperature=0.9, seed=i, n=3) for i in range(5)]


@pytest.fixture(scope="module")
def asks(mesh: Mesh) -> list[Ask]:
    """Twenty of four kinds. The stop texts are those that the greedy ones run into at two thirds."""
    with mesh.client() as client:
        texts = [client.collect(one.prompt, **one.options).text for one in GREEDY]
    stops = [text[len(text) * 2 // 3 :][:12] for text in texts]
    stopped = [ask("stop text", i, temperature=0.0, stop=stop) for i, stop in enumerate(stops)]
    return [*GREEDY, *SEEDED, *THREE, *stopped]


@pytest.fixture(scope="module")
def undisturbed(mesh: Mesh, asks: list[Ask]) -> dict[str, Said]:
    with mesh.client() as client:
        return {one.name: said(client.collect(one.prompt, **one.options)) for one in asks}


@pytest.fixture
def slow(mesh: Mesh) -> Iterator[None]:
    """Streams take a while."""
    mesh.write_script({"step_ms": STEP_MS})
    yield
    mesh.write_script({})


@dataclass
class Crowd:
    """Streams under way, and how far they are together."""

    num_tokens: int = 0
    tasks: dict[str, "asyncio.Task[list[Event]]"] = field(default_factory=dict)

    async def listen(self, client: AsyncClient, one: Ask) -> list[Event]:
        events = []
        async for event in client.generate(one.prompt, **one.options):
            events.append(event)
            if isinstance(event, TokenChunk):
                self.num_tokens += len(event.ids)
        check_numbers(events)
        return events

    async def reach(self, num_tokens: int) -> None:
        """Waits until all have shown so many tokens together."""
        await soon(lambda: self.num_tokens >= num_tokens, 60)

    async def events(self) -> dict[str, list[Event]]:
        """All of them, once they have ended."""
        return {name: await task for name, task in self.tasks.items()}


@asynccontextmanager
async def crowd(mesh: Mesh, asks: list[Ask]) -> AsyncIterator[Crowd]:
    """The streams of one client, begun at once."""
    made = Crowd()
    async with mesh.async_client() as client, asyncio.TaskGroup() as group:
        for one in asks:
            made.tasks[one.name] = group.create_task(made.listen(client, one), name=one.name)
        yield made


async def soon(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Polls off the loop's way."""
    begin_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - begin_s < timeout_s, f"not within {timeout_s} s"
        await asyncio.sleep(0.01)


async def kill(mesh: Mesh, name: str) -> None:
    await asyncio.to_thread(mesh.kill, name)


async def restart(mesh: Mesh, name: str) -> None:
    mesh.start_again(name)
    await asyncio.to_thread(mesh.wait_ready, name)


def check(events: dict[str, list[Event]], undisturbed: dict[str, Said]) -> None:
    assert events
    for name, heard in events.items():
        assert said(collect(heard)) == undisturbed[name], name


def num_moves(events: dict[str, list[Event]]) -> int:
    return sum(collect(heard).receipt.moves for heard in events.values())


def drawn(mesh: Mesh, name: str) -> float:
    return mesh.metrics(name).value("pagemesh_engine_drawn_tokens_total")


def running(mesh: Mesh, name: str) -> float:
    return mesh.metrics(name).total("pagemesh_engine_running_sequences")


def accepted(events: dict[str, list[Event]]) -> int:
    return sum(collect(heard).usage.completion_tokens for heard in events.values())


# engines that are only thought dead


async def test_stale_tokens_of_a_frozen_engine(mesh: Mesh, slow: None, undisturbed: dict[str, Said]) -> None:
    """It goes on where it stopped, long after its streams went elsewhere; nobody takes what it says."""
    num_stale = 0.0
    for name in ENGINES:  # one that is frozen just between two steps has nothing stale to say: then the next
        before = sum(drawn(mesh, name) for name in ENGINES)
        async with crowd(mesh, GREEDY + SEEDED) as streams:
            await soon(lambda name=name: running(mesh, name) > 0)  # type: ignore[misc]
            await streams.reach(2 * NUM_TOKENS)
            mesh.freeze(name)
            try:
                events = await streams.events()
            finally:
                mesh.thaw(name)
        check(events, undisturbed)
        assert num_moves(events) > 0
        await soon(lambda name=name: running(mesh, name) == 0)  # type: ignore[misc]
        num_stale = sum(drawn(mesh, name) for name in ENGINES) - before - accepted(events)
        if num_stale:
            break
    assert num_stale > 0, "nothing stale was produced"


async def test_stale_tokens_of_a_parted_engine_are_told_from_the_others(mesh: Mesh, proxies: Proxies) -> None:
    """It computes on until it misses its gateway, saying what nobody else would say at those places."""
    prompt, old, new = TokenIds((504, 3575, 283)), range(5_000, 5_200), range(9_000, 9_200)
    options: Options = {"max_tokens": 150, "temperature": 0.0, "ignore_eos": True}
    force(mesh, prompt, old)
    total = sum(drawn(mesh, name) for name in ENGINES)
    async with crowd(mesh, [Ask("parted", prompt, options)]) as streams:
        await streams.reach(20)
        (name,) = [name for name in ENGINES if running(mesh, name)]
        proxies[name].hold()
        try:
            force(mesh, prompt, new)
            events = await streams.events()
        finally:
            proxies[name].release()
    ids = collect(events["parted"]).choices[0].ids
    num_old = sum(token_id in old for token_id in ids)
    assert ids == (*old[:num_old], *new[num_old:150])
    assert 20 <= num_old < 150 and num_moves(events) == 1
    await soon(lambda: running(mesh, name) == 0)
    num_stale = sum(drawn(mesh, name) for name in ENGINES) - total - 150
    assert num_stale > 20, "it draws on for the two seconds that it waits"
    mesh.write_script({})


def force(mesh: Mesh, prompt: TokenIds, output_ids: range) -> None:
    part = {"prompt_ids": list(prompt.ids), "output_ids": list(output_ids), "step_ms": STEP_MS}
    mesh.write_script({"scripts": [part]})


# killed processes


@pytest.mark.parametrize("seed", range(5))
async def test_a_gateway_is_killed(
    mesh: Mesh, slow: None, asks: list[Ask], undisturbed: dict[str, Said], seed: int
) -> None:
    """Its clients go on at the other one, which knows nothing of their streams."""
    dice = random.Random(seed)
    chosen = [dice.choice(asks[begin : begin + 5]) for begin in range(0, 20, 5)]
    async with crowd(mesh, chosen) as streams:
        await streams.reach(dice.randrange(1, 5 * NUM_TOKENS))
        await kill(mesh, "gateway-0")
        events = await streams.events()
    await restart(mesh, "gateway-0")
    check(events, undisturbed)
    resumed = Counter(
        event.address for heard in events.values() for event in heard if isinstance(event, Resumed)
    )
    assert set(resumed) == {mesh.address("gateway-1")}


async def test_a_scheduler_is_killed_with_requests_in_its_queue(
    mesh: Mesh, slow: None, asks: list[Ask], undisturbed: dict[str, Said]
) -> None:
    """They queue again at the other one; those that run notice nothing."""
    wide: Options = {"n": SLOTS, "max_tokens": 150, "ignore_eos": True}
    busy = [Ask(f"busy {i}", TokenIds((504, 3575, 284, i)), wide) for i in range(len(ENGINES))]
    parts = [{"prompt_ids": list(one.prompt.ids), "output_ids": list(range(5_000, 5_150))} for one in busy]
    mesh.write_script({"step_ms": STEP_MS, "scripts": parts})
    async with mesh.async_client() as client:
        before = {one.name: said(await client.collect(one.prompt, **one.options)) for one in busy[:1]}
    before |= {one.name: before[busy[0].name] for one in busy}
    async with crowd(mesh, busy) as full:
        await soon(lambda: sum(running(mesh, name) for name in ENGINES) == SLOTS * len(ENGINES))
        async with crowd(mesh, [*asks, *later(asks)]) as queued:
            await soon(lambda: waiting(mesh, "scheduler-0") >= NUM_QUEUED)
            await kill(mesh, "scheduler-0")
            queued_events = await queued.events()
        full_events = await full.events()
    await restart(mesh, "scheduler-0")
    check(full_events, before)
    check(queued_events, undisturbed | {one.name: undisturbed[one.name[1:]] for one in later(asks)})
    assert num_moves(full_events) == 0


def later(asks: list[Ask]) -> list[Ask]:
    """The same requests once more."""
    return [Ask(f"+{one.name}", one.prompt, one.options) for one in asks]


def waiting(mesh: Mesh, name: str) -> float:
    return mesh.metrics(name).total("pagemesh_scheduler_waiting_sequences")


async def test_a_tokenizer_is_killed_with_prompts_in_its_hands(mesh: Mesh) -> None:
    """The other one encodes them."""
    questions = [f"Question {i}: what is it that dies and nobody notices?" for i in range(10)]
    options: Options = {"max_tokens": 10, "temperature": 0.0, "ignore_eos": True}
    async with mesh.async_client() as client:
        before = [said(await client.collect(question, **options)) for question in questions]
        num_ended = ended(mesh)
        mesh.freeze("tokenizer-0")
        tasks = [asyncio.create_task(client.collect(question, **options)) for question in questions]
        # They are asked in turn: one half has its answer, the other is at the frozen one.
        await soon(lambda: ended(mesh) - num_ended == len(questions) / 2)
        assert sum(task.done() for task in tasks) <= len(questions) / 2
        await kill(mesh, "tokenizer-0")
        after = [said(answer) for answer in await asyncio.gather(*tasks)]
    await restart(mesh, "tokenizer-0")
    assert after == before


def ended(mesh: Mesh) -> float:
    return mesh.metrics("gateway-0").total("pagemesh_gateway_requests_total")


def live(mesh: Mesh) -> set[str]:
    """Engines that can take streams now."""
    return live_engines(mesh.address("scheduler-0")) & live_engines(mesh.address("scheduler-1"))


@pytest.mark.parametrize("seed", range(2))
async def test_engines_are_killed_under_twenty_streams(
    mesh: Mesh, slow: None, asks: list[Ask], undisturbed: dict[str, Said], seed: int
) -> None:
    """Greedy, seeded, three choices and stop texts; three kills at seeded points, each engine comes back."""
    dice = random.Random(seed)
    num_tokens = sum(said_of.num_tokens for said_of in undisturbed.values())
    points = sorted(dice.randrange(1, num_tokens * 2 // 3) for _ in ENGINES)
    async with crowd(mesh, asks) as streams:
        for name, point in zip(dice.sample(ENGINES, len(ENGINES)), points, strict=True):
            await streams.reach(point)
            await kill(mesh, name)
            mesh.start_again(name)
            await soon(lambda name=name: bool(live(mesh) - {name}), 60)  # type: ignore[misc]
        events = await streams.events()
    for name in ENGINES:
        await asyncio.to_thread(mesh.wait_ready, name)
    check(events, undisturbed)
    assert num_moves(events) > 0
