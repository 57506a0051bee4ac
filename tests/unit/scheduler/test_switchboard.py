"""Spans, answers and model health as they leave the process, on played streams and the loop's own clock."""

from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from pagemesh.v1 import scheduler_pb2
from services.chassis.readiness import Readiness
from services.chassis.stream import StreamBroken
from services.chassis.tasks import Tasks
from services.scheduler.core.credit import Room
from services.scheduler.core.engines import EngineReport
from services.scheduler.core.limits import Limits
from services.scheduler.core.placement import PlacementCore
from services.scheduler.core.request import CLASSES
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.switchboard import Switchboard
from services.scheduler.watch import EngineWatch, EngineWatches, resolve
from tests.support.scheduler_mesh import MODEL, facts, request

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class PlayedStream:
    """Remembers what was sent, or is broken."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_broken = False

    def send(self, message: Any) -> None:
        if self.is_broken:
            raise StreamBroken("gone")
        self.sent.append(message)


class Desk:
    """A switchboard with everything it needs."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.registry = CollectorRegistry()
        self.readiness = Readiness()
        core = PlacementCore(Limits(), lambda: 0.5)
        metrics = SchedulerMetrics(self.registry)
        self.board = Switchboard(core, "boot", metrics, provider.get_tracer("test"), self.readiness)
        self.gateway: Any = PlayedStream()
        self.engine: Any = PlayedStream()
        self.stream_id = self.board.connect_gateway(self.gateway, "scheduler")

    def connect_engine(self, room: int) -> None:
        self.board.connect_engine(facts("e"), self.engine)
        report = EngineReport({each: Room(room, 8192) for each in CLASSES}, num_running=1)
        self.board.apply(lambda now: self.board.core.engine_report("e-boot", report, now))

    def enqueue(self, *requests: Any) -> None:
        self.board.apply(lambda now: self.board.core.enqueue(self.stream_id, requests, now))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


async def test_waiting_is_a_span_under_the_enqueues_parent() -> None:
    desk = Desk()
    desk.connect_engine(1)
    desk.enqueue(request(1, traceparent=f"00-{TRACE}-{PARENT}-01"))
    span = desk.spans.get_finished_spans()[0]
    assert span.name == "queue" and span.parent is not None and span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert span.attributes is not None and span.attributes["pagemesh.engine.id"] == "e"


async def test_one_message_answers_all_that_one_event_decided() -> None:
    desk = Desk()
    desk.connect_engine(2)
    desk.enqueue(*(request(handle) for handle in (1, 2, 3)))
    answer: scheduler_pb2.PlaceResponse = desk.gateway.sent[-1]
    assert [each.handle for each in answer.placed] == [1, 2]
    assert [each.handle for each in answer.queue_news] == [3]


async def test_a_broken_gateway_disturbs_no_other() -> None:
    desk = Desk()
    other: Any = PlayedStream()
    desk.board.connect_gateway(other, "scheduler")
    desk.gateway.is_broken = True
    desk.connect_engine(1)
    assert other.sent[-1].models[0].model == MODEL
    desk.enqueue(request(1))
    desk.board.disconnect_gateway(desk.stream_id)


async def test_model_health_follows_the_fleet_and_decisions_are_counted() -> None:
    desk = Desk()
    desk.connect_engine(1)
    assert desk.readiness.model(MODEL) is True
    desk.enqueue(request(1), request(2, num_sequences=99))
    assert desk.value("pagemesh_scheduler_tickets_issued_total") == 1
    assert desk.value("pagemesh_scheduler_refusals_total", reason="too_large") == 1
    assert desk.value("pagemesh_scheduler_decision_seconds_count") == 2
    desk.board.disconnect_engine("e-boot")
    assert desk.readiness.model(MODEL) is False


async def test_a_name_stands_for_all_its_addresses() -> None:
    assert await resolve("127.0.0.1:7630") == ["127.0.0.1:7630"]
    assert "127.0.0.1:7630" in (await resolve("localhost:7630") or [])
    assert await resolve("no-such-host.invalid:7630") is None


async def test_addresses_come_and_go_with_their_name_unless_a_stream_is_up() -> None:
    found: list[list[str] | None] = [["a:1", "b:1"]]
    watches: dict[str, Any] = {}

    class PlayedWatch:
        def __init__(self) -> None:
            self.is_up = self.is_stopped = False

        def stop(self) -> None:
            self.is_stopped = True

        async def run(self) -> None:
            return

    def make(address: str) -> EngineWatch:
        watches[address] = PlayedWatch()
        return watches[address]  # type: ignore[no-any-return]

    async def look_up(target: str) -> list[str] | None:
        return found[-1]

    tasks = Tasks()
    all_watches = EngineWatches(["name:1"], look_up, make, tasks)
    await all_watches.look_up_once()
    watches["b:1"].is_up = True
    found.append(None)
    await all_watches.look_up_once()
    assert not watches["a:1"].is_stopped, "a failed look-up says nothing"
    found.append(["c:1"])
    await all_watches.look_up_once()
    assert (watches["a:1"].is_stopped, watches["b:1"].is_stopped) == (True, False)
    assert set(watches) == {"a:1", "b:1", "c:1"}
    await tasks.close()
