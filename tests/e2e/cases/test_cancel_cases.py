"""Faults of callers who vanish, from the field: their work ends, and those who do not vanish never notice."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pagemesh import AsyncClient, TokenChunk, TokenIds
from pagemesh.retry import RetryPolicy
from pagemesh.v1 import engine_pb2, scheduler_pb2
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.tcp_proxy import TcpProxy

KEEPALIVE_S = 1.0
NOTICE_S = {"reset": 0.0, "silence": 1.5 * KEEPALIVE_S}
"""After how long a dead caller is known: a reset at once, silence when a ping was not answered."""
TIMER_S = 0.5
STEP_S = 0.05
NUM_CANCELS = 200
NUM_NORMAL = 250
NUM_ROUNDS = 4
MAX_GROWTH_MIB = 8
EOS = 2


@pytest.fixture(scope="module")
def gate() -> Iterator[TcpProxy]:
    """What stands between the callers who vanish and the gateway."""
    with TcpProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def narrow(gate: TcpProxy) -> Iterator[Mesh]:
    """Two sequences at a time."""
    settings = {"*": {"keepalive_s": KEEPALIVE_S}, "engine": {"max_sequences": 2}}
    with Mesh(engines=1, settings=settings) as mesh:
        gate.target = mesh.gateways[0]
        yield mesh


@pytest.fixture(scope="module")
def run_hop() -> Iterator[TcpProxy]:
    with TcpProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def place_hop() -> Iterator[TcpProxy]:
    with TcpProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def wide(run_hop: TcpProxy, place_hop: TcpProxy) -> Iterator[Mesh]:
    settings = {"engine": {"address": run_hop.address}, "gateway": {"schedulers": place_hop.address}}
    mesh = Mesh(engines=1, settings=settings)
    run_hop.target, place_hop.target = mesh.address("engine-0"), mesh.address("scheduler-0")
    with mesh:
        yield mesh


@pytest.fixture
async def dying(gate: TcpProxy, narrow: Mesh) -> AsyncIterator[AsyncClient]:
    """A caller behind the proxy, who does not try again."""
    async with AsyncClient(gate.address, retry_policy=RetryPolicy(max_attempts=1)) as client:
        yield client


def prompt(number: int) -> TokenIds:
    return TokenIds((504, 3575, 282, 1000 + number))


async def soon(condition: Callable[[], bool], timeout_s: float = 10.0) -> float:
    """Polls off the loop's way; returns the seconds it took."""
    begin_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - begin_s < timeout_s, f"not within {timeout_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin_s


async def read(stream: Any, num_tokens: int) -> None:
    while num_tokens > 0:
        event = await anext(stream)
        num_tokens -= len(event.ids) if isinstance(event, TokenChunk) else 0


def drawn(mesh: Mesh) -> float:
    return mesh.metrics("engine-0").value("pagemesh_engine_drawn_tokens_total")


def ended(mesh: Mesh, reason: str) -> float:
    return mesh.metrics("engine-0").total("pagemesh_engine_ended_total", reason=reason)


def waiting(mesh: Mesh) -> float:
    return mesh.metrics("scheduler-0").total("pagemesh_scheduler_waiting_sequences")


def num_lines(mesh: Mesh) -> int:
    return sum(len(mesh.logs(name)) for name in mesh.names)


def is_idle(mesh: Mesh) -> bool:
    gateway, engine = mesh.metrics("gateway-0"), mesh.metrics("engine-0")
    states = ("running", "waiting")
    at_gateway = sum(gateway.total(f"pagemesh_gateway_{state}_requests") for state in states)
    return at_gateway + engine.value("pagemesh_engine_kv_blocks", state="used") == 0


@pytest.mark.parametrize("how", ["reset", "silence"])
async def test_callers_whose_sockets_die(narrow: Mesh, gate: TcpProxy, dying: AsyncClient, how: str) -> None:
    """C05: both slots are theirs, for 20,000 tokens more; the third gets one as soon as it is known."""
    narrow.write_script({"step_ms": STEP_S * 1000})
    baseline = Baseline(narrow)
    async with narrow.async_client() as client:
        undisturbed = await client.collect(prompt(3), max_tokens=20, ignore_eos=True, temperature=0)
        streams = [dying.generate(prompt(i), max_tokens=20_000, ignore_eos=True) for i in range(2)]
        for stream in streams:
            await read(stream, 3)
        third = asyncio.create_task(client.collect(prompt(3), max_tokens=20, ignore_eos=True, temperature=0))
        await soon(lambda: waiting(narrow) == 1)
        lines, tokens, cancelled = num_lines(narrow), drawn(narrow), ended(narrow, "cancelled")
        gate.reset() if how == "reset" else gate.hold()
        try:
            took_s = await soon(lambda: ended(narrow, "cancelled") == cancelled + 2)
            assert took_s < NOTICE_S[how] + TIMER_S
            answer = await third
        finally:
            gate.reset()
            gate.release()
    assert answer.text == undisturbed.text
    assert answer.receipt.hops.queue_ms < (NOTICE_S[how] + TIMER_S) * 1000
    for stream in streams:
        await stream.aclose()
    baseline.check()
    num_wasted = drawn(narrow) - tokens - 20
    assert num_wasted <= 2 * ((NOTICE_S[how] + TIMER_S) / STEP_S)
    assert num_lines(narrow) - lines < 20, "a flood of log lines"


async def unary(client: AsyncClient, number: int) -> None:
    """Ends by itself: by length, or by an id."""
    answer = await client.collect(prompt(number), max_tokens=3 + number % 3)
    assert answer.usage.completion_tokens in (2, 3 + number % 3)


async def cut_short(client: AsyncClient, number: int) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.collect(prompt(number), max_tokens=20_000, ignore_eos=True), 0.3)


async def together(calls: list[Any], limit: int) -> None:
    slots = asyncio.Semaphore(limit)

    async def one(call: Any) -> None:
        async with slots:
            await call

    await asyncio.gather(*map(one, calls))


async def test_cancelled_unary_calls_stop_and_normal_ones_leave_nothing(
    wide: Mesh, run_hop: TcpProxy, place_hop: TcpProxy
) -> None:
    """C06: tables and memory are flat; nobody is told to stop what has ended by itself."""
    every_third = [{"prompt_ids": list(prompt(i).ids), "output_ids": [5000, EOS]} for i in range(0, 250, 3)]
    baseline = Baseline(wide)
    before = ended(wide, "cancelled"), ended(wide, "stream")
    sizes_mib = []
    async with wide.async_client() as client:
        for _ in range(NUM_ROUNDS):
            wide.write_script({"step_ms": 20})
            await together([cut_short(client, i) for i in range(NUM_CANCELS)], NUM_CANCELS)
            assert await soon(lambda: is_idle(wide)) < 1.5
            stopped = drawn(wide)
            wide.write_script({"scripts": every_third})
            told = num_cancels(run_hop), num_withdrawals(place_hop)
            await together([unary(client, i) for i in range(NUM_NORMAL)], 50)
            await soon(lambda: is_idle(wide))
            assert (num_cancels(run_hop), num_withdrawals(place_hop)) == told
            assert drawn(wide) - stopped <= 5 * NUM_NORMAL, "a cancelled call went on"
            sizes_mib.append({name: resident_mib(wide, name) for name in wide.names})
    baseline.check()
    # On a busy machine a round's calls may all be cut short before an engine has them; not all rounds'.
    assert ended(wide, "cancelled") > before[0] and ended(wide, "stream") == before[1]
    growth = {name: sizes_mib[-1][name] - sizes_mib[0][name] for name in wide.names}
    assert max(growth.values()) < MAX_GROWTH_MIB, sizes_mib


def num_cancels(run_hop: TcpProxy) -> int:
    messages = run_hop.from_client.messages
    return sum(len(engine_pb2.RunRequest.FromString(message).cancel) for message in messages)


def num_withdrawals(place_hop: TcpProxy) -> int:
    messages = place_hop.from_client.messages
    return sum(len(scheduler_pb2.PlaceRequest.FromString(message).withdraw) for message in messages)


def resident_mib(mesh: Mesh, name: str) -> float:
    return mesh.metrics(name).value("process_resident_memory_bytes") / 2**20
