"""The scheduler process over real gRPC: engines that play Watch, gateways that play Place."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc, generation_pb2, scheduler_pb2, scheduler_pb2_grpc
from services.chassis.stream import DEFAULT_TIMING, MessageStream, StreamTiming

ROOT = Path(__file__).parents[2]
MODEL = "smollm2"
TENANT = b"t" * 16
DEADLINE_S = 10.0

PlaceEnd = MessageStream[scheduler_pb2.PlaceRequest, scheduler_pb2.PlaceResponse]
WatchEnd = MessageStream[engine_pb2.WatchResponse, engine_pb2.WatchRequest]


async def until(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> None:
    """Waits for what another process brings about."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 what is awaited lies in another process
            await asyncio.sleep(0.005)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PlayedEngine(engine_pb2_grpc.EngineServiceServicer):
    """Watch as a test wants it."""

    def __init__(self, name: str, boot_id: str, port: int, model: str = MODEL) -> None:
        self.info = engine_pb2.EngineInfo(
            engine_id=name,
            boot_id=boot_id,
            address=f"127.0.0.1:{port}",
            model=model,
            block_size=16,
            max_model_len=4096,
            max_pool_tokens=8192,
            max_sequences=8,
            vocab_size=1000,
            fingerprint=generation_pb2.Fingerprint(model_revision="r1"),
        )
        self.waiting: list[dict[int, tuple[int, int]]] = []
        self.streams: list[WatchEnd] = []
        self.first_room = 0
        self.timing = DEFAULT_TIMING
        self._port = port
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"0.0.0.0:{self._port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def Watch(self, request_iterator: AsyncIterator[Any], context: Any) -> None:  # type: ignore[override]
        hello = engine_pb2.WatchResponse(hello=self.info)
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=engine_pb2.WatchResponse(), hello=hello, timing=self.timing
        ) as stream:
            self.streams.append(stream)
            self._report_to(stream, self.first_room)
            async for message in stream:
                if message.has_waiting:
                    self.waiting.append(
                        {work.priority: (work.num_sequences, work.num_tokens) for work in message.waiting}
                    )

    def report(self, room: int, **fields: Any) -> None:
        self._report_to(next(each for each in self.streams if each.is_open), room, **fields)

    def _report_to(self, stream: WatchEnd, room: int, **fields: Any) -> None:
        rooms = [
            engine_pb2.ClassRoom(priority=each, num_sequences=room, num_tokens=4096) for each in (1, 2, 3)
        ]
        report = engine_pb2.EngineReport(room=rooms, num_running=1, **fields)
        stream.send(engine_pb2.WatchResponse(report=report))

    def name_tickets(self, room: int, *numbers: int) -> None:
        outcome = engine_pb2.TICKET_OUTCOME_ADMITTED
        self.report(room, tickets=[engine_pb2.TicketNews(number=each, outcome=outcome) for each in numbers])


class PlayedGateway:
    """One Place stream."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self.placed: dict[int, scheduler_pb2.Placed] = {}
        self.refused: dict[int, scheduler_pb2.Refused] = {}
        self.models: list[dict[str, scheduler_pb2.ModelState]] = []
        self.news: dict[int, int] = {}
        self.boot_id = ""

    async def open(self) -> None:
        call = scheduler_pb2_grpc.SchedulerServiceStub(self._channel).Place()
        hello = scheduler_pb2.PlaceHello(gateway_id="gateway", boot_id="g1")
        self.stream: PlaceEnd = MessageStream.over_call(
            call, heartbeat=scheduler_pb2.PlaceRequest(), hello=scheduler_pb2.PlaceRequest(hello=hello)
        )
        self._reader = asyncio.create_task(self._read())
        await until(lambda: self.boot_id)

    async def _read(self) -> None:
        async for message in self.stream:
            self.boot_id = message.hello.boot_id or self.boot_id
            self.placed |= {each.handle: each for each in message.placed}
            self.refused |= {each.handle: each for each in message.refused}
            self.news |= {each.handle: each.num_ahead for each in message.queue_news}
            if message.has_models:
                self.models.append({each.model: each for each in message.models})

    async def close(self) -> None:
        self.stream.close()
        await self._reader
        await self._channel.close()

    def enqueue(self, *handles: int, **fields: Any) -> None:
        words = {"model": MODEL, "tenant_key": TENANT, "num_prompt_tokens": 100, "max_output_tokens": 10}
        items = [scheduler_pb2.Enqueue(handle=handle, **{**words, **fields}) for handle in handles]
        self.stream.send(scheduler_pb2.PlaceRequest(enqueue=items))

    def withdraw(self, handle: int) -> None:
        self.stream.send(scheduler_pb2.PlaceRequest(withdraw=[scheduler_pb2.Withdraw(handle=handle)]))

    def tell_reach(self, engine: PlayedEngine, is_reachable: bool) -> None:
        reach = scheduler_pb2.EngineReach(
            engine_id=engine.info.engine_id, engine_boot_id=engine.info.boot_id, is_reachable=is_reachable
        )
        self.stream.send(scheduler_pb2.PlaceRequest(reach=[reach]))


class SchedulerProcess:
    """`python -m services.scheduler`."""

    def __init__(self, *flags: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._flags = flags
        self.lines: list[str] = []

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.scheduler", "--listen", self.address, *self._flags),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read())
        await until(lambda: any(line.startswith("READY") for line in self.lines), 30)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reader


class Mesh:
    """A scheduler, its engines and a gateway."""

    def __init__(self) -> None:
        self.ports = (free_port(), free_port())
        self.engines: list[PlayedEngine] = []
        hosts = ("127.0.0.1", "127.0.0.2")
        targets = ",".join(f"{host}:{port}" for port in self.ports for host in hosts)
        self.metrics_port = free_port()
        self.scheduler = SchedulerProcess(
            *("--engines", targets, "--metrics-listen", f"127.0.0.1:{self.metrics_port}"),
            *("--max-queued-sequences", "50", "--no-engine-wait-s", "3"),
        )

    async def start(self) -> None:
        await self.scheduler.start()
        self.gateway = PlayedGateway(self.scheduler.address)
        await self.gateway.open()

    async def engine(
        self, index: int = 0, boot_id: str = "", room: int = 0, model: str = MODEL
    ) -> PlayedEngine:
        engine = PlayedEngine(f"e{index}", boot_id or f"e{index}-boot", self.ports[index], model)
        engine.first_room = room
        self.engines.append(engine)
        await engine.start()
        await until(lambda: engine.streams and engine.waiting)
        return engine

    async def stop(self) -> None:
        await self.gateway.close()
        await self.scheduler.stop()
        for engine in self.engines:
            await engine.stop()


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    mesh = Mesh()
    await mesh.start()
    yield mesh
    await mesh.stop()


async def test_a_request_is_placed_with_a_ticket_and_its_engines_address(mesh: Mesh) -> None:
    await mesh.engine(room=4)
    await until(lambda: mesh.gateway.models[-1])
    model = mesh.gateway.models[-1][MODEL]
    assert (model.num_engines, model.max_sequences, model.max_pool_tokens) == (1, 8, 8192)
    assert (model.vocab_size, model.block_size, model.revision) == (1000, 16, "r1")
    mesh.gateway.enqueue(1, num_sequences=2)
    await until(lambda: 1 in mesh.gateway.placed)
    placed = mesh.gateway.placed[1]
    assert (placed.engine_id, placed.address, placed.queue_reason) == (
        "e0",
        f"127.0.0.1:{mesh.ports[0]}",
        "none",
    )
    tickets = [(each.scheduler_boot_id, each.engine_boot_id, each.batch_size) for each in placed.tickets]
    assert tickets == [(mesh.gateway.boot_id, "e0-boot", 2)] * 2


async def test_an_engine_with_two_addresses_is_one_engine(mesh: Mesh) -> None:
    engine = await mesh.engine(room=4)
    await until(lambda: len(engine.streams) == 2 and sum(each.is_open for each in engine.streams) == 1)
    assert mesh.gateway.models[-1][MODEL].num_engines == 1
    mesh.gateway.enqueue(1)
    await until(lambda: 1 in mesh.gateway.placed)


async def test_waiting_work_is_reported_by_class_and_placed_when_there_is_room(mesh: Mesh) -> None:
    engine = await mesh.engine()
    mesh.gateway.enqueue(1, 2)
    mesh.gateway.enqueue(3, priority=generation_pb2.PRIORITY_BATCH, num_prompt_tokens=50)
    await until(lambda: engine.waiting[-1] == {2: (2, 200), 3: (1, 50)})
    assert mesh.gateway.news[1] == 0
    engine.report(2)
    await until(lambda: len(mesh.gateway.placed) == 2)
    assert set(mesh.gateway.placed) == {1, 2}
    assert mesh.gateway.placed[1].queue_reason == "no_room"
    engine.name_tickets(1, *(mesh.gateway.placed[each].tickets[0].number for each in (1, 2)))
    await until(lambda: 3 in mesh.gateway.placed)
    await until(lambda: engine.waiting[-1] == {})


async def test_withdraw_and_closed_streams_leave_nothing_waiting(mesh: Mesh) -> None:
    engine = await mesh.engine()
    other = PlayedGateway(mesh.scheduler.address)
    await other.open()
    mesh.gateway.enqueue(1)
    other.enqueue(1)
    await until(lambda: engine.waiting[-1] == {2: (2, 200)})
    mesh.gateway.withdraw(1)
    await other.close()
    await until(lambda: engine.waiting[-1] == {})
    engine.report(8)
    mesh.gateway.enqueue(2)
    await until(lambda: 2 in mesh.gateway.placed)
    assert set(mesh.gateway.placed) == {2}


async def test_bad_items_are_refused_alone(mesh: Mesh) -> None:
    await mesh.engine(room=8)
    mesh.gateway.enqueue(1, tenant_key=b"short")
    mesh.gateway.enqueue(2, priority=17)
    mesh.gateway.enqueue(3, num_prompt_tokens=0)
    mesh.gateway.enqueue(4, head_block_hashes=b"x")
    mesh.gateway.enqueue(5, num_sequences=9)
    mesh.gateway.enqueue(6)
    await until(lambda: len(mesh.gateway.refused) == 5 and 6 in mesh.gateway.placed)
    refusals = {handle: each.refusal for handle, each in mesh.gateway.refused.items()}
    invalid = scheduler_pb2.PLACE_REFUSAL_INVALID
    assert refusals == {
        1: invalid,
        2: invalid,
        3: invalid,
        4: invalid,
        5: scheduler_pb2.PLACE_REFUSAL_TOO_LARGE,
    }
    assert mesh.gateway.stream.is_open


async def test_a_stream_without_hello_is_refused(mesh: Mesh) -> None:
    async with grpc.aio.insecure_channel(mesh.scheduler.address) as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Place()
        await call.write(scheduler_pb2.PlaceRequest(withdraw=[scheduler_pb2.Withdraw(handle=1)]))
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_overload_is_answered_at_once_with_a_delay(mesh: Mesh) -> None:
    engine = await mesh.engine()
    started = asyncio.get_running_loop().time()
    mesh.gateway.enqueue(*range(1, 501))
    await until(lambda: len(mesh.gateway.refused) == 450)
    assert asyncio.get_running_loop().time() - started < 2.0
    refused = mesh.gateway.refused[500]
    assert refused.refusal == scheduler_pb2.PLACE_REFUSAL_QUEUE_FULL
    assert refused.retry_delay_us >= 50_000
    engine.report(8)
    await until(lambda: len(mesh.gateway.placed) == 8)


async def test_deadlines_are_pruned_while_the_engine_is_busy(mesh: Mesh) -> None:
    """One request waits a second, a hundred half a second: none is held back by a step, none runs."""
    engine = await mesh.engine()
    loop = asyncio.get_running_loop()
    started = loop.time()
    mesh.gateway.enqueue(1, time_left_us=1_000_000)
    mesh.gateway.enqueue(*range(2, 42), queue_time_left_us=500_000)
    await until(lambda: len(mesh.gateway.refused) == 40)
    assert 0.45 < loop.time() - started < 0.95
    await until(lambda: 1 in mesh.gateway.refused)
    assert 0.95 < loop.time() - started < 1.45
    assert mesh.gateway.refused[1].refusal == scheduler_pb2.PLACE_REFUSAL_DEADLINE
    assert mesh.gateway.refused[2].refusal == scheduler_pb2.PLACE_REFUSAL_QUEUE_WAIT
    engine.report(8)
    await until(lambda: engine.waiting[-1] == {})
    assert mesh.gateway.placed == {}


async def test_a_ticket_the_engine_never_names_is_given_up(mesh: Mesh) -> None:
    await mesh.engine(room=1)
    mesh.gateway.enqueue(1)
    mesh.gateway.enqueue(2)
    await until(lambda: 1 in mesh.gateway.placed)
    await until(lambda: 2 in mesh.gateway.placed, 4)
    assert mesh.gateway.placed[2].queued_us >= 1_900_000
    assert "pagemesh_scheduler_tickets_given_up_total 1.0" in await _metrics(mesh)


async def _metrics(mesh: Mesh) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", mesh.metrics_port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


async def test_no_ticket_for_an_engine_out_of_the_gateways_reach(mesh: Mesh) -> None:
    engine = await mesh.engine(room=4)
    mesh.gateway.tell_reach(engine, False)
    mesh.gateway.enqueue(1)
    await until(lambda: 1 in mesh.gateway.news)
    other = PlayedGateway(mesh.scheduler.address)
    await other.open()
    other.enqueue(1)
    await until(lambda: 1 in other.placed)
    assert mesh.gateway.placed == {}
    mesh.gateway.tell_reach(engine, True)
    await until(lambda: 1 in mesh.gateway.placed)
    await other.close()


async def test_a_dead_engine_gets_nothing_and_its_successor_is_found(mesh: Mesh) -> None:
    engine = await mesh.engine(room=4)
    await until(lambda: mesh.gateway.models[-1])
    await engine.stop()
    await until(lambda: not mesh.gateway.models[-1])
    mesh.gateway.enqueue(1)
    await mesh.engine(boot_id="second", room=4)
    await until(lambda: 1 in mesh.gateway.placed)
    assert mesh.gateway.placed[1].tickets[0].engine_boot_id == "second"
    assert mesh.gateway.placed[1].queue_reason == "no_engine"


async def test_a_frozen_engine_is_down_after_two_seconds_of_silence(mesh: Mesh) -> None:
    engine = PlayedEngine("e0", "e0-boot", mesh.ports[0])
    engine.timing = StreamTiming(heartbeat_s=60, silence_s=120)
    mesh.engines.append(engine)
    await engine.start()
    await until(lambda: mesh.gateway.models[-1])
    connected = asyncio.get_running_loop().time()
    await until(lambda: not mesh.gateway.models[-1])
    assert 1.5 < asyncio.get_running_loop().time() - connected < 3.5


async def test_the_same_process_is_welcome_on_a_new_call(mesh: Mesh) -> None:
    engine = await mesh.engine(room=4)
    await until(lambda: mesh.gateway.models[-1])
    calls = len(engine.streams)
    next(each for each in engine.streams if each.is_open).close()
    await until(lambda: len(engine.streams) > calls)
    mesh.gateway.enqueue(1)
    await until(lambda: 1 in mesh.gateway.placed)


async def test_without_an_engine_a_request_is_refused_after_a_while(mesh: Mesh) -> None:
    mesh.gateway.enqueue(1)
    await until(lambda: 1 in mesh.gateway.refused)
    assert mesh.gateway.refused[1].refusal == scheduler_pb2.PLACE_REFUSAL_NO_ENGINE


async def test_explain_queue_state_and_health(mesh: Mesh) -> None:
    engine = await mesh.engine(0, room=1)
    await mesh.engine(1, room=0, model="other")
    await until(lambda: set(mesh.gateway.models[-1]) == {MODEL, "other"})
    mesh.gateway.enqueue(1)
    mesh.gateway.enqueue(2)
    await until(lambda: engine.waiting[-1] == {2: (1, 100)})
    async with grpc.aio.insecure_channel(mesh.scheduler.address) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        item = scheduler_pb2.Enqueue(model=MODEL, tenant_key=TENANT, num_prompt_tokens=300)
        said = await stub.Explain(scheduler_pb2.SchedulerServiceExplainRequest(enqueue=item))
        assert (said.engine_id, said.bucket_tokens, said.num_ahead, said.refusal) == ("", 512, 1, 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Explain(scheduler_pb2.SchedulerServiceExplainRequest())
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        state = await stub.GetQueueState(scheduler_pb2.GetQueueStateRequest())
        assert [(each.num_sequences, each.num_tokens) for each in state.queues] == [(0, 0), (1, 100), (0, 0)]
        engines = {each.engine_id: (each.is_live, each.num_unnamed_tickets) for each in state.engines}
        assert engines == {"e0": (True, 1), "e1": (True, 0)}
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "pagemesh.v1.SchedulerService", f"model/{MODEL}"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
    text = await _metrics(mesh)
    assert 'pagemesh_scheduler_waiting_sequences{priority="interactive"} 1.0' in text
    assert "pagemesh_scheduler_engines_live 2.0" in text


async def test_sigterm_refuses_what_waits_and_exits_with_0(mesh: Mesh) -> None:
    await mesh.engine()
    mesh.gateway.enqueue(1, 2)
    await until(lambda: 2 in mesh.gateway.news)
    assert await mesh.scheduler.terminate() == 0
    refusals = [mesh.gateway.refused[handle].refusal for handle in (1, 2)]
    assert refusals == [scheduler_pb2.PLACE_REFUSAL_DRAINING] * 2
    assert not mesh.gateway.stream.is_open
