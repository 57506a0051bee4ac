"""Faults of gRPC and asyncio from the field: sizes, keep-alive, cancelled calls, deadlines, children."""

import ast
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh import (
    AsyncClient,
    Client,
    PagemeshError,
    RawText,
    TokenChunk,
    TokenIds,
    TruncationSide,
)
from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc
from services.demo.span_receiver import SpanReceiver
from tests.support.baseline import Baseline
from tests.support.http2 import Kind
from tests.support.mesh import Mesh
from tests.support.metrics import Metrics
from tests.support.tcp_proxy import TcpProxy

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20
LIMIT_BYTES = 16 * MIB
MAX_REPLY_BYTES = MIB
LONGEST_TOKEN = 45_855
"""Of the default model: eighty #."""
MODEL_LEN = 1_500_000
SLOTS = 64
KEEPALIVE_S = 1.0
TIMER_S = 0.5
"""How exact timers must be."""
NUM_CANCELS = 200
BATCH = 50
HOPS = {
    "client to gateway": "gateway-0",
    "gateway to tokenizer": "tokenizer-0",
    "gateway to scheduler": "scheduler-0",
    "gateway to engine": "engine-0",
    "scheduler to engine": "engine-0",
}
"""Who is dialled."""

Proxies = dict[str, TcpProxy]
Call = Any


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanReceiver]:
    with SpanReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def mesh(spans: SpanReceiver) -> Iterator[Mesh]:
    settings = {
        "*": {"otlp_endpoint": spans.address},
        "tokenizer": {"max_prompt_tokens": MODEL_LEN},
        "gateway": {"encode_wait_s": 60},
        "engine": {
            "max_sequences": SLOTS,
            "block_size": 256,
            "num_blocks": 2 * MODEL_LEN // 256,
            "max_batch_tokens": 65_536,
            "chunk_tokens": 65_536,
        },
    }
    script = {"max_model_len": MODEL_LEN, "max_ids_per_step": BATCH}
    with Mesh(engines=1, script=script, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    with ExitStack() as stack:
        yield {hop: stack.enter_context(TcpProxy()) for hop in HOPS}


@pytest.fixture(scope="module")
def brisk_mesh(proxies: Proxies) -> Iterator[Mesh]:
    """Keep-alive ten times as brisk; every hop goes through a proxy."""
    settings = {
        "*": {"keepalive_s": KEEPALIVE_S},
        "scheduler": {"engines": proxies["scheduler to engine"].address},
        "gateway": {
            "tokenizers": proxies["gateway to tokenizer"].address,
            "schedulers": proxies["gateway to scheduler"].address,
        },
        "engine": {"address": proxies["gateway to engine"].address},
    }
    mesh = Mesh(engines=1, settings=settings)
    for hop, proxy in proxies.items():
        proxy.target = mesh.address(HOPS[hop])
    with mesh:
        yield mesh


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    baseline = Baseline(mesh)
    yield
    baseline.check()


@pytest.fixture
def client(mesh: Mesh) -> Iterator[Client]:
    with mesh.client(timeout_s=60) as made:
        yield made


@pytest.fixture
async def caller(mesh: Mesh) -> AsyncIterator[AsyncClient]:
    async with mesh.async_client() as made:
        yield made


@pytest.fixture
async def stub(mesh: Mesh) -> AsyncIterator["gateway_pb2_grpc.GatewayServiceAsyncStub"]:
    """A caller with windows so small that a reader who stops is noticed soon."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384)]
    async with grpc.aio.insecure_channel(mesh.gateways[0], options=options) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def force(mesh: Mesh, *parts: dict[str, object], **more: object) -> None:
    mesh.write_script({"max_model_len": MODEL_LEN, "max_ids_per_step": BATCH, "scripts": list(parts), **more})


def prompt(number: int) -> TokenIds:
    return TokenIds((504, 3575, 282, 1000 + number))


async def soon(condition: Callable[[], bool], timeout_s: float = 10.0) -> float:
    """Polls off the loop's way; returns the seconds it took."""
    begin_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - begin_s < timeout_s, f"not within {timeout_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin_s


def engine(mesh: Mesh) -> Metrics:
    return mesh.metrics("engine-0")


def drawn(mesh: Mesh) -> float:
    return engine(mesh).value("pagemesh_engine_drawn_tokens_total")


def admitted(mesh: Mesh) -> float:
    return engine(mesh).value("pagemesh_engine_admitted_total")


def num_running(mesh: Mesh) -> float:
    return engine(mesh).total("pagemesh_engine_running_sequences")


def num_requests(mesh: Mesh, state: str) -> float:
    """Requests at the gateway that are `running` or `waiting`."""
    return mesh.metrics("gateway-0").total(f"pagemesh_gateway_{state}_requests")


# F01: sizes


def words(num_bytes: int) -> str:
    return ("plain words " * (num_bytes // 12 + 1))[:num_bytes]


@pytest.mark.parametrize("num_bytes", [4 * MIB - 1, 4 * MIB + 1, 8 * MIB])
def test_a_text_over_every_default_limit_of_grpc(client: Client, num_bytes: int) -> None:
    """F01: from the caller to the gateway, from there to the tokenizer."""
    answer = client.collect(
        RawText(words(num_bytes)),
        truncation_side=TruncationSide.LEFT,
        max_prompt_tokens=100,
        max_tokens=2,
        ignore_eos=True,
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, 2)


async def test_ids_over_every_default_limit_of_grpc(
    stub: "gateway_pb2_grpc.GatewayServiceAsyncStub",
) -> None:
    """F01: from the caller to the gateway and the engine. No reply exceeds 1 MiB, whatever was sent."""
    num_ids = 1_410_000
    request = gateway_pb2.GenerateRequest(max_tokens=2)
    request.ids.ids.extend(20_000 + i % 28_000 for i in range(num_ids))
    request.sampling.ignore_eos = True
    num_bytes = request.ByteSize()
    assert num_bytes > 4 * MIB
    events = await drain(stub.Generate(request, timeout=60))
    assert events[-1].complete.usage.prompt_tokens == num_ids
    assert max(event.ByteSize() for event in events) <= MAX_REPLY_BYTES
    assert not events[0].started.resumable, "the ids to resume with are too many for one reply"


async def test_a_request_over_the_limit_is_refused_in_words(
    mesh: Mesh, stub: "gateway_pb2_grpc.GatewayServiceAsyncStub"
) -> None:
    """F01: at the edge, with both numbers; neither the tokenizer nor an engine sees it."""
    before = admitted(mesh), encodes(mesh)
    for num_bytes in (LIMIT_BYTES + 1, LIMIT_BYTES + MIB - 64):
        text = words(num_bytes)
        count = stub.CountTokens(gateway_pb2.CountTokensRequest(text=text))
        generate = stub.Generate(gateway_pb2.GenerateRequest(text=text))
        for answer in (count, generate.read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(LIMIT_BYTES) in str(caught.value.details())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CountTokens(gateway_pb2.CountTokensRequest(text=words(LIMIT_BYTES + MIB + 1)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(LIMIT_BYTES + MIB) in str(caught.value.details())
    assert (admitted(mesh), encodes(mesh)) == before


def encodes(mesh: Mesh) -> float:
    return mesh.metrics("tokenizer-0").total("pagemesh_tokenizer_requests_total", method="Encode")


async def drain(call: Call) -> list[Any]:
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


@pytest.mark.parametrize("num_more", [0, 1])
async def test_all_processes_have_one_limit(mesh: Mesh, num_more: int) -> None:
    """F01: the public one and 1 MiB, to the byte."""
    request = health_pb2.HealthCheckRequest(service="x" * (LIMIT_BYTES + MIB - 5 + num_more))
    assert request.ByteSize() == LIMIT_BYTES + MIB + num_more
    expected = grpc.StatusCode.RESOURCE_EXHAUSTED if num_more else grpc.StatusCode.NOT_FOUND
    for name in mesh.names:
        async with grpc.aio.insecure_channel(mesh.address(name)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health_pb2_grpc.HealthStub(channel).Check(request)
            assert (name, caught.value.code()) == (name, expected)


async def test_no_reply_grows_over_one_mib_while_its_reader_waits(
    mesh: Mesh, stub: "gateway_pb2_grpc.GatewayServiceAsyncStub"
) -> None:
    """F01: what waits for a slow reader is merged, log-probabilities and all, but in pieces."""
    num_tokens = 2000
    force(mesh, {"prompt_ids": list(prompt(1).ids), "output_ids": [5000] * num_tokens, "ids_per_step": BATCH})
    request = gateway_pb2.GenerateRequest(ids=gateway_pb2.TokenIds(ids=prompt(1).ids), max_tokens=num_tokens)
    request.sampling.logprobs = 20
    call = stub.Generate(request, timeout=60)
    await call.read()
    done = drawn(mesh) + num_tokens - 2 * BATCH
    await soon(lambda: drawn(mesh) >= done and num_running(mesh) == 0, 40)
    events = await drain(call)
    entries = [entry for event in events for entry in event.token.logprobs]
    assert len(entries) == num_tokens and all(len(entry.top) == 20 for entry in entries)
    assert max(len(event.token.ids) for event in events) > 10 * BATCH, "nothing had to wait"
    assert max(event.ByteSize() for event in events) <= MAX_REPLY_BYTES


# F02: keep-alive, ten times shorter


async def test_pings_of_idle_and_of_silent_connections_are_welcome(
    brisk_mesh: Mesh, proxies: Proxies
) -> None:
    """F02: eight seconds of nothing on one channel, of one prefill without a token on another."""
    prefill_s = 8
    async with brisk_mesh.async_client() as client:
        await client.collect(prompt(2), max_tokens=1)  # every hop is connected
    brisk_mesh.write_script({"step_ms": prefill_s * 1000})
    before = {hop: (proxy.num_connections, goaways(proxy)) for hop, proxy in proxies.items()}
    gate, tokenizer_hop = proxies["client to gateway"], proxies["gateway to tokenizer"]
    num_pings = tokenizer_hop.from_client.frames[Kind.PING]
    options = [
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with (
        grpc.aio.insecure_channel(gate.address, options=options) as idle,
        grpc.aio.insecure_channel(gate.address, options=options) as silent,
    ):
        await gateway_pb2_grpc.GatewayServiceStub(idle).ListModels(gateway_pb2.ListModelsRequest())
        request = gateway_pb2.GenerateRequest(ids=gateway_pb2.TokenIds(ids=prompt(3).ids), max_tokens=1)
        begin_s = time.monotonic()
        events = await drain(gateway_pb2_grpc.GatewayServiceStub(silent).Generate(request, timeout=30))
        assert time.monotonic() - begin_s > prefill_s * 0.9 and events[-1].HasField("complete")
        assert idle.get_state() is grpc.ChannelConnectivity.READY
        after = {hop: (proxy.num_connections, goaways(proxy)) for hop, proxy in proxies.items()}
        assert after == before | {"client to gateway": (2, 0)}
    assert gate.from_client.frames[Kind.PING] > prefill_s / 2, "nobody pinged"
    assert gate.from_server.frames[Kind.PING] > prefill_s
    assert tokenizer_hop.from_client.frames[Kind.PING] - num_pings > prefill_s / 2


def goaways(proxy: TcpProxy) -> int:
    return proxy.from_client.frames[Kind.GOAWAY] + proxy.from_server.frames[Kind.GOAWAY]


# F03: cancelled calls


async def started(client: AsyncClient, numbers: Sequence[int], num_tokens: int, **options: Any) -> list[Any]:
    """Open streams that have shown so many tokens."""
    streams = [client.generate(prompt(number), **options) for number in numbers]
    await asyncio.gather(*(read(stream, num_tokens) for stream in streams))
    return streams


async def read(stream: Any, num_tokens: int) -> None:
    while num_tokens > 0:
        event = await anext(stream)
        num_tokens -= len(event.ids) if isinstance(event, TokenChunk) else 0


async def drop(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_idle(mesh: Mesh) -> bool:
    at_gateway = num_requests(mesh, "running") + num_requests(mesh, "waiting")
    return at_gateway == 0 and engine(mesh).value("pagemesh_engine_kv_blocks", state="used") == 0


async def test_cancelled_while_it_is_encoded(mesh: Mesh, caller: AsyncClient) -> None:
    """F03: nothing of it goes on to the scheduler or an engine."""
    before, arrived = admitted(mesh), arrivals(mesh)
    mesh.freeze("tokenizer-0")
    try:
        tasks = [
            asyncio.create_task(caller.collect(f"Question {i}?", max_tokens=5)) for i in range(NUM_CANCELS)
        ]
        await soon(lambda: arrivals(mesh) == arrived + NUM_CANCELS)
        await drop(tasks)
        assert await soon(lambda: ends(mesh) == arrivals(mesh)) < 1
    finally:
        mesh.thaw("tokenizer-0")
    answer = await caller.collect("And now?", max_tokens=5, ignore_eos=True)
    assert answer.usage.completion_tokens == 5 and admitted(mesh) == before + 1


def arrivals(mesh: Mesh) -> float:
    return mesh.metrics("gateway-0").total("pagemesh_gateway_started_total")


def ends(mesh: Mesh) -> float:
    return mesh.metrics("gateway-0").total("pagemesh_gateway_requests_total")


async def test_cancelled_in_the_queue(mesh: Mesh, caller: AsyncClient) -> None:
    """F03: the scheduler forgets it; it never runs."""
    force(mesh, step_ms=20)
    busy = await started(caller, range(SLOTS), 1, max_tokens=20_000, ignore_eos=True)
    before = admitted(mesh)
    tasks = [asyncio.create_task(caller.collect(prompt(i), max_tokens=5)) for i in range(NUM_CANCELS)]
    await soon(lambda: waiting(mesh) == NUM_CANCELS)
    await drop(tasks)
    assert await soon(lambda: waiting(mesh) + num_requests(mesh, "waiting") == 0) < 1
    assert admitted(mesh) == before and num_running(mesh) == SLOTS
    for stream in busy:
        await stream.aclose()
    assert await soon(lambda: is_idle(mesh)) < 1.5


def waiting(mesh: Mesh) -> float:
    return mesh.metrics("scheduler-0").total("pagemesh_scheduler_waiting_sequences")


async def test_cancelled_while_the_engine_computes_its_prompt(mesh: Mesh, caller: AsyncClient) -> None:
    """F03: the step under way is the last one that knows of it."""
    force(mesh, step_ms=300)
    before = drawn(mesh)
    for _ in range(NUM_CANCELS // BATCH):
        tasks = [asyncio.create_task(caller.collect(prompt(i), max_tokens=5)) for i in range(BATCH)]
        await soon(lambda: num_running(mesh) == BATCH)
        await drop(tasks)
        assert await soon(lambda: is_idle(mesh)) < 1.5
    assert drawn(mesh) - before <= 2 * NUM_CANCELS, "at most the step under way and the next"


@pytest.mark.parametrize("ids_per_step", [1, BATCH])
async def test_cancelled_after_the_first_chunk(mesh: Mesh, caller: AsyncClient, ids_per_step: int) -> None:
    """F03."""
    force(
        mesh, {"prompt_ids": None, "output_ids": [5000] * 20_000, "ids_per_step": ids_per_step, "step_ms": 10}
    )
    for _ in range(NUM_CANCELS // BATCH):
        streams = await started(caller, range(BATCH), 1, max_tokens=20_000)
        for stream in streams:
            await stream.aclose()
        assert await soon(lambda: is_idle(mesh)) < 1.5


async def test_a_cancelled_stream_is_gone_within_a_tenth_of_a_second(mesh: Mesh, caller: AsyncClient) -> None:
    """F03: at the engine, after the way over the gateway."""
    force(mesh, step_ms=5)
    times_s = []
    for i in range(15):
        (stream,) = await started(caller, [i], 3, max_tokens=20_000, ignore_eos=True)
        await stream.aclose()
        times_s.append(await soon(lambda: num_running(mesh) == 0))
    assert statistics.median(times_s) < 0.1, times_s


@pytest.mark.parametrize("max_tokens", [1500, 50_000], ids=["engine is done", "engine goes on"])
async def test_cancelled_while_its_reader_stalls(
    mesh: Mesh, stub: "gateway_pb2_grpc.GatewayServiceAsyncStub", max_tokens: int
) -> None:
    """F03: the gateway sits in a write that nobody takes."""
    output = {"output_ids": [LONGEST_TOKEN] * max_tokens, "ids_per_step": BATCH, "step_ms": 5}
    force(mesh, {"prompt_ids": None, **output})
    request = gateway_pb2.GenerateRequest(ids=gateway_pb2.TokenIds(ids=prompt(0).ids), max_tokens=max_tokens)
    before = outcomes(mesh)
    for _ in range(NUM_CANCELS // 2 // BATCH):
        enough = drawn(mesh) + 1400 * BATCH
        calls = [stub.Generate(request, timeout=60) for _ in range(BATCH)]
        for call in calls:
            await call.read()
        await soon(lambda enough=enough: drawn(mesh) >= enough, 20)  # type: ignore[misc]
        assert num_requests(mesh, "running") == BATCH, "all of them still have something to write"
        for call in calls:
            call.cancel()
        assert await soon(lambda: is_idle(mesh)) < 1.5
    assert outcomes(mesh) == before | {"cancelled": before["cancelled"] + NUM_CANCELS // 2}


def outcomes(mesh: Mesh) -> dict[str, float]:
    samples = mesh.metrics("gateway-0").samples
    name = "pagemesh_gateway_requests_total"
    return {dict(labels)["outcome"]: value for (found, labels), value in samples.items() if found == name}


async def test_cancelled_at_its_very_end(mesh: Mesh, caller: AsyncClient) -> None:
    """F03: between the last token and `complete`; each of them ends as one or the other."""
    force(mesh)
    before = ended(mesh)
    for _ in range(NUM_CANCELS // BATCH):
        streams = await started(caller, range(BATCH), 3, max_tokens=3, ignore_eos=True)
        for stream in streams:
            await stream.aclose()
        assert await soon(lambda: is_idle(mesh)) < 1.5
    assert ended(mesh) - before == NUM_CANCELS


def ended(mesh: Mesh) -> float:
    metrics = mesh.metrics("gateway-0")
    return sum(
        metrics.value("pagemesh_gateway_requests_total", outcome=outcome) for outcome in ("ok", "cancelled")
    )


async def test_a_turn_cancelled_at_its_very_end_leaves_its_session_usable(
    mesh: Mesh, caller: AsyncClient
) -> None:
    """F03: during the commit. The lease is given back, whichever won."""
    force(mesh)
    async with await caller.open_session("ann") as session:
        for i in range(20):
            stream = session.generate(f"Turn {i}.", max_tokens=2, ignore_eos=True)
            await read(stream, 2)
            await stream.aclose()
            await soon(lambda: is_idle(mesh))
        answer = await session.collect("And the last one.", max_tokens=2, ignore_eos=True)
        assert answer.receipt.history_saved and answer.usage.prompt_tokens > 20 * 5


# F06: deadlines


@contextmanager
def frozen(mesh: Mesh, name: str, seconds: float) -> Iterator[None]:
    mesh.freeze(name)
    timer = threading.Timer(seconds, mesh.thaw, [name])
    timer.start()
    yield
    timer.join()


async def failed(call: Any) -> tuple[str, float]:
    """How it ends, and after how many seconds."""
    begin_s = time.monotonic()
    with pytest.raises(PagemeshError) as caught:
        await call
    # Where both hold a timer, either may be first; the caller's own gives no reason.
    reason = caught.value.reason or caught.value.code.name.removesuffix("_EXCEEDED")
    return reason, time.monotonic() - begin_s


async def test_a_deadline_is_for_all_hops_together(mesh: Mesh, caller: AsyncClient) -> None:
    """F06: 1.5 s of 2 are gone in the tokenizer; the engine, who wants 5 s, gets the rest and stops."""
    step_s = 0.1
    force(mesh, step_ms=step_s * 1000)
    before = drawn(mesh)
    with frozen(mesh, "tokenizer-0", 1.5):
        reason, elapsed_s = await failed(
            caller.collect("How long?", max_tokens=50, ignore_eos=True, timeout_s=2.0)
        )
    assert (reason, elapsed_s) == ("DEADLINE", pytest.approx(2.0, abs=TIMER_S))
    await soon(lambda: num_running(mesh) == 0, 1)
    num_drawn = drawn(mesh) - before
    assert 0 < num_drawn <= (2.0 - 1.5 + TIMER_S) / step_s + 1


async def test_what_the_tokenizer_ate_up_costs_no_engine_anything(mesh: Mesh, caller: AsyncClient) -> None:
    """F06: the deadline passes while it is encoded."""
    before = admitted(mesh)
    with frozen(mesh, "tokenizer-0", 1.5):
        reason, elapsed_s = await failed(caller.collect("How long?", max_tokens=5, timeout_s=1.0))
    assert (reason, elapsed_s) == ("DEADLINE", pytest.approx(1.0, abs=TIMER_S))
    assert (await caller.collect("And now?", max_tokens=5, ignore_eos=True)).usage.completion_tokens == 5
    assert admitted(mesh) == before + 1


async def test_a_deadline_in_the_queue(mesh: Mesh, caller: AsyncClient) -> None:
    """F06: by the call's deadline or by the longest wait that was asked for; those who expire never run."""
    force(mesh, step_ms=20)
    busy = await started(caller, range(SLOTS), 1, max_tokens=20_000, ignore_eos=True)
    before = engine(mesh)
    late = [failed(caller.collect(prompt(i), max_tokens=5, timeout_s=1.0)) for i in range(20)]
    tired = [failed(caller.collect(prompt(i), max_tokens=5, max_queue_wait_ms=1000)) for i in range(20)]
    results = await asyncio.gather(*late, *tired)
    assert {reason for reason, _ in results[:20]} == {"DEADLINE"}
    assert {reason for reason, _ in results[20:]} == {"QUEUE_WAIT"}
    assert [elapsed_s for _, elapsed_s in results] == [pytest.approx(1.0, abs=TIMER_S)] * 40
    await soon(lambda: waiting(mesh) == 0, 1)
    after = engine(mesh)
    name = "pagemesh_engine_admitted_total"
    assert after.value(name) == before.value(name), "one of them ran"
    for stream in busy:
        await stream.aclose()


async def test_retries_do_not_extend_a_deadline(mesh: Mesh) -> None:
    """F06: one gateway is not there, and the other has no tokenizer to ask."""
    async with AsyncClient(["127.0.0.1:1", mesh.gateways[0]]) as client:
        with frozen(mesh, "tokenizer-0", 2.5):
            reason, elapsed_s = await failed(client.collect("How long?", max_tokens=5, timeout_s=2.0))
    assert (reason, elapsed_s) == ("DEADLINE", pytest.approx(2.0, abs=TIMER_S))


async def test_the_longest_run_time_ends_well(mesh: Mesh, caller: AsyncClient) -> None:
    """F06: it begins with the first admission, and what is there is the answer."""
    step_s = 0.05
    force(mesh, step_ms=step_s * 1000)
    before = drawn(mesh)
    begin_s = time.monotonic()
    answer = await caller.collect(prompt(3), max_tokens=1000, ignore_eos=True, max_run_time_ms=1000)
    assert time.monotonic() - begin_s == pytest.approx(1.0, abs=TIMER_S)
    assert answer.choices[0].finish_reason.value == "run_time"
    await soon(lambda: num_running(mesh) == 0, 1)
    assert answer.usage.completion_tokens <= drawn(mesh) - before <= answer.usage.completion_tokens + 2


# F08: children


def test_no_code_forks(mesh: Mesh) -> None:
    """F08: children of the mesh are started afresh, never forked behind gRPC's back."""
    forks = []
    for path in [*ROOT.glob("services/**/*.py"), *ROOT.glob("pagemesh/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            is_fork = isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty")
            if is_fork or any(name.split(".")[0] == "multiprocessing" for name in imported):
                forks.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not forks


def test_every_child_of_a_process_is_another_program(mesh: Mesh) -> None:
    """F08: a fork without exec would show its parent's command line."""
    children = {name: children_of(mesh.pid(name)) for name in mesh.names}
    assert children["tokenizer-0"], "the chat template has its own process"
    for name, pids in children.items():
        for pid in pids:
            assert command_of(pid) != command_of(mesh.pid(name)), name


def test_a_dead_child_is_replaced_for_the_next_call(mesh: Mesh, client: Client, spans: SpanReceiver) -> None:
    """F08: long after channels, threads and the exporter are up."""
    assert client.generate_text("Hello.", max_tokens=2, ignore_eos=True)
    assert spans.spans(), "spans are exported"
    (child,) = children_of(mesh.pid("tokenizer-0"))
    os.kill(child, signal.SIGKILL)
    mesh.wait_until(lambda: not children_of(mesh.pid("tokenizer-0")))
    begin_s = time.monotonic()
    roles = ["system", *["user", "assistant"] * 20, "user"]  # so many that the template has to be asked
    turns = [{"role": role, "content": "Something."} for role in roles]
    assert client.count_tokens(turns) > 10
    assert time.monotonic() - begin_s < 5
    (heir,) = children_of(mesh.pid("tokenizer-0"))
    assert command_of(heir) != command_of(mesh.pid("tokenizer-0"))


def test_the_first_call_of_every_child_of_a_caller(mesh: Mesh, client: Client) -> None:
    """F08: their parent has open channels and running streams."""
    force(mesh, step_ms=10)
    stream = client.generate(prompt(4), max_tokens=2000, ignore_eos=True)
    assert len(list(islice(stream, 3))) == 3
    run_client = "from pagemesh.cli import main; main()"
    command = [sys.executable, "-c", run_client, "generate", "--gateway", mesh.gateways[0], "Hello."]
    children = [
        subprocess.Popen(
            [*command, "--max-tokens", "2"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for child in children:
        _, problem = child.communicate(timeout=20)
        assert child.returncode == 0, problem.decode()
    assert next(stream) is not None
    stream.close()


def children_of(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
