"""A gateway process between real tokenizer, scheduler and scripted engine processes, some of which die."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from services.contract.errors import Reason
from services.contract.status import from_rpc_error, rpc_status
from tests.support.mesh import Mesh

PROMPT = [100, 200, 300]
ANSWER = [1000 + 7 * i for i in range(60)]
LONG_PROMPT = [100, 200, 301]
LONG_ANSWER = [1000 + i % 20_000 for i in range(60_000)]
HUGE = 60_000
UNSERVED_LIMIT_S = 12
SLOW_PROMPT = [100, 200, 302]
SCRIPT = {
    "scripts": [
        {"prompt_ids": PROMPT, "output_ids": ANSWER, "step_ms": 10},
        {"prompt_ids": LONG_PROMPT, "output_ids": LONG_ANSWER, "ids_per_step": 50},
        {"prompt_ids": SLOW_PROMPT, "output_ids": LONG_ANSWER, "step_ms": 20},
    ]
}
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384))
SETTINGS = {
    "gateway": {
        "stall_timeout_s": 1.5,
        "deployment_key": "test",
        "unserved_limit_s": UNSERVED_LIMIT_S,
        "encode_wait_s": 60,
    }
}

pytestmark = pytest.mark.asyncio(loop_scope="module")

Event = gateway_pb2.GenerateResponse


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[Mesh]:
    async with Mesh(engines=2, gateways=2, script=SCRIPT, settings=SETTINGS) as mesh:
        yield mesh


class Gateway:
    """A channel to one gateway."""

    def __init__(self, address: str, *options: tuple[str, int]) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self.channel)

    async def __aenter__(self) -> "Gateway":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    def generate(self, timeout: float = 30.0, **fields: Any) -> Any:
        return self.stub.Generate(ask(**fields), timeout=timeout)


def ask(
    prompt: list[int] = PROMPT, max_tokens: int = len(ANSWER), **fields: Any
) -> gateway_pb2.GenerateRequest:
    request = gateway_pb2.GenerateRequest(
        ids=gateway_pb2.TokenIds(ids=prompt), max_tokens=max_tokens, **fields
    )
    request.sampling.temperature = 0
    return request


def ids_of(events: list[Event], choice: int = 0) -> list[int]:
    return [i for event in events if event.token.choice == choice for i in event.token.ids]


def text_of(events: list[Event]) -> str:
    return "".join(event.token.text for event in events)


def check_stream(events: list[Event], first_seq_id: int = 0) -> gateway_pb2.Complete:
    """`started`, tokens, one `complete`, numbered without a gap; its receipt accounts for the time."""
    assert [event.seq_id for event in events] == list(range(first_seq_id, first_seq_id + len(events)))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-1] == "complete" and set(kinds[1:-1]) <= {"token"}
    complete = events[-1].complete
    hops = complete.receipt.hops
    total_ms = sum(value for _, value in hops.ListFields())
    assert total_ms == pytest.approx(complete.receipt.elapsed_ms, rel=0.02)
    return complete


async def read(call: Any, num_events: int) -> list[Event]:
    return [await call.read() for _ in range(num_events)]


async def rest(call: Any) -> list[Event]:
    """All events to the end. Raises AioRpcError."""
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def failure(call: Any) -> tuple[Reason, list[Event]]:
    """The reason that a stream ends with, and its events before."""
    events = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while (event := await call.read()) is not grpc.aio.EOF:
            events.append(event)
    receipt = generation_pb2.Receipt()
    status = rpc_status(caught.value)
    assert status is not None and any(detail.Unpack(receipt) for detail in status.details)
    assert receipt.trace_id and status.ByteSize() <= 2048
    return from_rpc_error(caught.value).reason, events


async def idle(mesh: Mesh) -> None:
    """Nothing runs or waits anywhere."""

    def is_idle() -> bool:
        live = [name for name in mesh.names if mesh.is_running(name)]
        gauges = [
            mesh.metrics(name).total(f"pagemesh_{name.partition('-')[0]}_{what}")
            for name in live
            for what in (
                "running_requests",
                "waiting_requests",
                "running_sequences",
                "waiting_sequences",
            )
        ]
        return not any(gauges)

    await asyncio.to_thread(mesh.wait_until, is_idle, 5.0, "idle")


async def test_a_stream_is_what_the_engine_drew(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        events = await rest(gateway.generate())
    complete = check_stream(events)
    assert ids_of(events) == ANSWER
    assert complete.usage.completion_tokens == len(ANSWER) and complete.receipt.moves == 0
    assert complete.receipt.tier == generation_pb2.EXACTNESS_TIER_BIT_IDENTICAL
    assert complete.receipt.hops.decode_ms > 10 * 40


async def test_three_choices_draw_apart_and_end_together(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        request = ask([5, 6, 7], 20, n=3, seed=1)
        request.sampling.temperature = 1
        events = await rest(gateway.stub.Generate(request, timeout=30))
    complete = check_stream(events)
    assert [choice.choice for choice in complete.choices] == [0, 1, 2]
    assert all(len(ids_of(events, choice)) == 20 for choice in range(3))
    assert len({tuple(ids_of(events, choice)) for choice in range(3)}) == 3


async def test_streams_move_when_their_engine_is_killed(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        undisturbed = await rest(gateway.generate())
        calls = [gateway.generate() for _ in range(6)]
        streams = [await read(call, 10) for call in calls]
        await asyncio.to_thread(mesh.kill, "engine-0")
        streams = [head + await rest(call) for head, call in zip(streams, calls, strict=True)]
        for stream in streams:
            check_stream(stream)
            assert ids_of(stream) == ANSWER and text_of(stream) == text_of(undisturbed)
        moves = sum(stream[-1].complete.receipt.moves for stream in streams)
        assert moves >= 1
        mesh.start_again("engine-0")
        await asyncio.to_thread(mesh.wait_ready, "engine-0")
    await idle(mesh)


async def test_a_frozen_engine_is_left_within_the_silence_and_welcome_when_it_thaws(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        calls = [gateway.generate() for _ in range(4)]
        streams = [await read(call, 5) for call in calls]
        mesh.freeze("engine-1")
        try:
            began_s = time.monotonic()
            streams = [head + await rest(call) for head, call in zip(streams, calls, strict=True)]
            assert time.monotonic() - began_s < 6
        finally:
            mesh.thaw("engine-1")
        for stream in streams:
            check_stream(stream)
            assert ids_of(stream) == ANSWER
        assert sum(stream[-1].complete.receipt.moves for stream in streams) >= 1
        again = [await rest(call) for call in [gateway.generate() for _ in range(4)]]
        assert all(ids_of(stream) == ANSWER for stream in again)
    await idle(mesh)


async def test_a_cancelled_stream_frees_everything_at_once(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        calls = [gateway.generate(prompt=LONG_PROMPT, max_tokens=HUGE) for _ in range(10)]
        for call in calls:
            await call.read()
            await call.read()
        for call in calls:
            call.cancel()
        began_s = time.monotonic()
        await idle(mesh)
        assert time.monotonic() - began_s < 1.5
    metrics = mesh.metrics("gateway-0")
    assert metrics.value("pagemesh_gateway_requests_total", outcome="cancelled") >= 10
    assert metrics.total("pagemesh_gateway_started_total") == metrics.total("pagemesh_gateway_requests_total")


async def test_a_reader_that_stops_is_given_up_and_others_do_not_notice(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0], *SMALL_WINDOW) as slow, Gateway(mesh.gateways[0]) as gateway:
        stalled = slow.generate(prompt=LONG_PROMPT, max_tokens=HUGE)
        await stalled.read()
        began_s = time.monotonic()
        while mesh.metrics("gateway-0").total("pagemesh_gateway_running_requests"):
            events = await rest(gateway.generate(max_tokens=10))
            assert ids_of(events) == ANSWER[:10]
            assert time.monotonic() - began_s < 15
        reason, events = await failure(stalled)
        assert reason is Reason.SLOW_READER
        assert ids_of(events) == LONG_ANSWER[: len(ids_of(events))]
    await idle(mesh)


async def test_the_deadline_decides_at_the_gateway(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        began_s = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in gateway.generate(timeout=0.3, prompt=LONG_PROMPT, max_tokens=HUGE):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began_s == pytest.approx(0.3, abs=0.2)
    await idle(mesh)
    assert mesh.metrics("gateway-0").value("pagemesh_gateway_requests_total", outcome="deadline") == 1


async def test_logprobs_come_only_to_who_asked(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        request = ask([8, 8, 9], 8)
        request.sampling.logprobs = 2
        asked, plain = await asyncio.gather(
            rest(gateway.stub.Generate(request, timeout=30)), rest(gateway.generate(max_tokens=20))
        )
    columns = [column for event in asked for column in event.token.logprobs]
    assert [column.chosen.token_id for column in columns] == ids_of(asked)
    assert all(len(column.top) == 2 and column.top[0].logprob <= 0 for column in columns)
    assert not any(event.token.logprobs for event in plain)


async def test_run_time_ends_well(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        events = await rest(gateway.generate(max_run_time_ms=200))
    complete = check_stream(events)
    assert complete.choices[0].finish_reason == generation_pb2.FINISH_REASON_RUN_TIME
    assert 0 < complete.choices[0].num_tokens < len(ANSWER)


async def test_a_stream_is_resumed_at_another_gateway(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as first, Gateway(mesh.gateways[1]) as second:
        call = first.generate(request_id="resume-me", seed=5)
        head = await read(call, 20)
        resume = gateway_pb2.Resume(
            next_seq_id=20,
            prompt_ids=head[0].started.prompt_ids,
            choices=[gateway_pb2.ResumeChoice(output_ids=ids_of(head))],
            resume_token=head[0].started.resume_token,
        )
        again = ask(request_id="resume-me", client_attempt=1, seed=5, resume=resume)
        tail = await rest(second.stub.Generate(again, timeout=30))
        check_stream(tail, first_seq_id=20)
        assert ids_of(head) + ids_of(tail) == ANSWER
        call.cancel()
        forged = ask(request_id="resume-me", client_attempt=2, seed=6, resume=resume)
        reason, events = await failure(second.stub.Generate(forged, timeout=30))
        assert reason is Reason.RESUME_MISMATCH and not events


async def test_a_higher_attempt_takes_over_and_an_equal_one_is_refused(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        call = gateway.generate(request_id="twice")
        await call.read()
        assert (await failure(gateway.generate(request_id="twice")))[0] is Reason.SUPERSEDED
        again = await rest(gateway.generate(request_id="twice", client_attempt=1))
        assert ids_of(again) == ANSWER
        assert (await failure(call))[0] is Reason.SUPERSEDED


async def test_the_tokenizer_dies_and_comes_back(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        request = gateway_pb2.GenerateRequest(text="hello", max_tokens=3)
        await asyncio.to_thread(mesh.kill, "tokenizer-0")
        call = gateway.stub.Generate(request, timeout=60)
        events = await rest(gateway.generate(max_tokens=5))
        assert ids_of(events) == ANSWER[:5]
        mesh.start_again("tokenizer-0")
        check_stream(await rest(call))


async def test_a_scheduler_dies_with_requests_queued_and_none_is_lost(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        running = gateway.generate()
        head = await read(running, 3)
        await asyncio.to_thread(mesh.kill, "scheduler-0")
        queued = [gateway.generate() for _ in range(20)]
        mesh.start_again("scheduler-0")
        for call in queued:
            events = await rest(call)
            check_stream(events)
            assert ids_of(events) == ANSWER
        assert ids_of(head + await rest(running)) == ANSWER
    await idle(mesh)


async def test_a_session_grows_by_turns_and_a_cancelled_turn_keeps_what_was_delivered(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        opened = await gateway.stub.OpenSession(gateway_pb2.OpenSessionRequest(user_id="ann"))

        def turn(**fields: Any) -> gateway_pb2.GenerateRequest:
            session = gateway_pb2.SessionTurn(id=opened.session_id, user_id="ann")
            request = gateway_pb2.GenerateRequest(session=session, **fields)
            request.conversation.segments.add(role=gateway_pb2.ROLE_USER, content="one more")
            return request

        first = await rest(gateway.stub.Generate(turn(max_tokens=7), timeout=30))
        complete = check_stream(first)
        assert complete.session_version == 1 and complete.receipt.history_saved
        call = gateway.stub.Generate(turn(max_tokens=30_000), timeout=30)
        started, *_ = await read(call, 3)
        second = started.started.num_prompt_tokens
        num_new = second - first[-1].complete.usage.total_tokens
        assert started.started.session_version == 1 and num_new > 0
        busy, _ = await failure(gateway.stub.Generate(turn(max_tokens=1), timeout=30))
        assert busy is Reason.TURN_RUNNING
        call.cancel()
        await idle(mesh)
        third = await rest(gateway.stub.Generate(turn(max_tokens=7), timeout=30))
        complete = check_stream(third)
        assert complete.session_version == 3
        assert complete.usage.prompt_tokens >= second + 2 + num_new
        await gateway.stub.ReleaseSession(
            gateway_pb2.ReleaseSessionRequest(session_id=opened.session_id, user_id="ann")
        )
        gone, _ = await failure(gateway.stub.Generate(turn(max_tokens=1), timeout=30))
        assert gone is Reason.UNKNOWN_SESSION


async def test_no_engine_left_ends_streams_with_a_status(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[0]) as gateway:
        call = gateway.generate(prompt=LONG_PROMPT, max_tokens=HUGE)
        await call.read()
        for name in ("engine-0", "engine-1"):
            await asyncio.to_thread(mesh.kill, name)
        began_s = time.monotonic()
        reason, _ = await failure(call)
        assert reason is Reason.UNAVAILABLE and time.monotonic() - began_s < UNSERVED_LIMIT_S + 3
        reason, _ = await failure(gateway.generate())
        assert reason is Reason.UNAVAILABLE
        for name in ("engine-0", "engine-1"):
            mesh.start_again(name)
            await asyncio.to_thread(mesh.wait_ready, name)
        await asyncio.to_thread(mesh.wait_until, lambda: _has_engines(mesh), 10.0, "engines seen again")
        assert ids_of(await rest(gateway.generate())) == ANSWER


async def test_drain_finishes_what_runs_and_refuses_what_is_new(mesh: Mesh) -> None:
    async with Gateway(mesh.gateways[1]) as gateway:
        health = health_pb2_grpc.HealthStub(gateway.channel)
        call = gateway.generate()
        head = await read(call, 3)
        endless = gateway.generate(prompt=SLOW_PROMPT, max_tokens=HUGE)
        await read(endless, 3)
        mesh.terminate("gateway-1")
        watch = health.Watch(health_pb2.HealthCheckRequest())
        async with asyncio.timeout(5):
            while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
                pass
        watch.cancel()
        assert (await failure(gateway.generate()))[0] is Reason.DRAINING
        events = head + await rest(call)
        check_stream(events)
        assert ids_of(events) == ANSWER
        assert (await failure(endless))[0] is Reason.DRAINING
    await asyncio.to_thread(mesh.wait_until, lambda: mesh.exit_code("gateway-1") == 0, 10.0, "exit 0")


def _has_engines(mesh: Mesh) -> bool:
    with grpc.insecure_channel(mesh.gateways[0]) as channel:
        models = gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(gateway_pb2.ListModelsRequest())
    return any(model.num_engines == 2 for model in models.models)
