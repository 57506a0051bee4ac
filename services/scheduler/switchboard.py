"""Connects the placement core to its streams: the clock and events go in, its commands go out as messages."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from opentelemetry.trace import Tracer

from pagemesh.v1 import engine_pb2, scheduler_pb2
from services.chassis.readiness import Readiness
from services.chassis.stream import In, MessageStream, Out, StreamBroken
from services.chassis.telemetry import context_from
from services.scheduler import messages
from services.scheduler.core.commands import (
    Command,
    ModelsChanged,
    News,
    Placed,
    Refused,
    ReportWaiting,
    Withdrawn,
)
from services.scheduler.core.engines import EngineFacts
from services.scheduler.core.placement import PlacementCore
from services.scheduler.metrics import SchedulerMetrics

GatewayEnd = MessageStream[scheduler_pb2.PlaceResponse, scheduler_pb2.PlaceRequest]
EngineEnd = MessageStream[engine_pb2.WatchRequest, engine_pb2.WatchResponse]
Event = Callable[[float], list[Command]]

MAX_ANSWERS = 2000
"""Answers in one message: far below 1 MiB."""

logger = logging.getLogger(__name__)


class Switchboard:
    """The one owner of the core; everything happens on its event loop."""

    def __init__(
        self,
        core: PlacementCore,
        boot_id: str,
        metrics: SchedulerMetrics,
        tracer: Tracer,
        readiness: Readiness,
    ) -> None:
        self.core = core
        self.boot_id = boot_id
        self._metrics = metrics
        self._tracer = tracer
        self._readiness = readiness
        self._loop = asyncio.get_running_loop()
        self._gateways: dict[int, GatewayEnd] = {}
        self._engines: dict[str, tuple[str, EngineEnd]] = {}
        """Boot id -> model and Watch stream."""
        self._known_models: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = float("inf")

    def now(self) -> float:
        """The clock of all events, seconds."""
        return self._loop.time()

    def apply(self, *events: Event) -> None:
        """Runs events at this moment and sends what they came to, one message per gateway."""
        now, started_s = self.now(), time.perf_counter()
        commands = [command for event in events for command in event(now)]
        self._note_decisions(commands, time.perf_counter() - started_s)
        self._send(commands)
        self._schedule_tick()

    def connect_gateway(self, stream: GatewayEnd, scheduler_id: str) -> int:
        """A Place stream began: it is told who answers and what the fleet offers."""
        stream_id = self.core.open_stream()
        self._gateways[stream_id] = stream
        hello = scheduler_pb2.PlaceServerHello(scheduler_id=scheduler_id, boot_id=self.boot_id)
        models = messages.from_models(self.core.models)
        stream.send(scheduler_pb2.PlaceResponse(hello=hello, models=models, has_models=True))
        return stream_id

    def disconnect_gateway(self, stream_id: int) -> None:
        """A Place stream ended."""
        del self._gateways[stream_id]
        self.apply(lambda now: self.core.close_stream(stream_id, now))

    def connect_engine(self, facts: EngineFacts, stream: EngineEnd) -> None:
        """A Watch stream brought its hello."""
        self._engines[facts.boot_id] = (facts.model, stream)
        self.apply(lambda now: self.core.engine_hello(facts, now))

    def disconnect_engine(self, boot_id: str) -> None:
        """A Watch stream ended."""
        del self._engines[boot_id]
        self.apply(lambda now: self.core.engine_down(boot_id, now))

    async def drain(self) -> None:
        """Refuses what waits and what comes, and lets the answers out."""
        self.apply(self.core.drain)
        await asyncio.gather(*(stream.flush() for stream in self._gateways.values()))

    def _schedule_tick(self) -> None:
        due = self.core.next_due()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.apply(self.core.tick)

    def _note_decisions(self, commands: Iterable[Command], took_s: float) -> None:
        num_decisions = 0
        for command in commands:
            self._metrics.note(command)
            num_decisions += isinstance(command, Placed | Refused)
        for _ in range(num_decisions):
            self._metrics.decision_seconds.observe(took_s / num_decisions)

    def _send(self, commands: Iterable[Command]) -> None:
        answers: dict[int, scheduler_pb2.PlaceResponse] = {}
        for command in commands:
            match command:
                case Placed() | Refused() | News():
                    self._answer(command, answers)
                case ReportWaiting():
                    self._report(command)
                case ModelsChanged():
                    self._announce(command)
            if isinstance(command, Placed | Refused | Withdrawn):
                self._trace(command)
        for stream_id, answer in answers.items():
            self._to_gateway(stream_id, answer)

    def _answer(
        self, command: Placed | Refused | News, answers: dict[int, scheduler_pb2.PlaceResponse]
    ) -> None:
        answer = answers.setdefault(command.stream_id, scheduler_pb2.PlaceResponse())
        match command:
            case Placed():
                answer.placed.append(messages.from_placed(command, self.boot_id))
            case Refused():
                answer.refused.append(messages.from_refused(command))
            case News():
                answer.queue_news.append(messages.from_news(command))
        if len(answer.placed) + len(answer.refused) + len(answer.queue_news) >= MAX_ANSWERS:
            self._to_gateway(command.stream_id, answers.pop(command.stream_id))

    def _to_gateway(self, stream_id: int, answer: scheduler_pb2.PlaceResponse) -> None:
        stream = self._gateways.get(stream_id)
        if stream is not None:
            _send_if_open(stream, answer)

    def _report(self, command: ReportWaiting) -> None:
        message = messages.from_waiting(command)
        for model, stream in self._engines.values():
            if model == command.model:
                _send_if_open(stream, message)

    def _announce(self, command: ModelsChanged) -> None:
        names = {each.model for each in command.models}
        self._metrics.engines_live.set(sum(each.num_engines for each in command.models))
        self._known_models |= names
        for name in self._known_models:
            self._readiness.set_model(name, name in names)
        message = scheduler_pb2.PlaceResponse(models=messages.from_models(command.models), has_models=True)
        for stream in self._gateways.values():
            _send_if_open(stream, message)

    def _trace(self, command: Placed | Refused | Withdrawn) -> None:
        """The span of its waiting, written at its end."""
        request = command.request
        if not request.traceparent:
            return
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            "queue",
            context=context_from(request.traceparent),
            start_time=ended_ns - round(command.queued_s * 1e9),
            attributes={
                "pagemesh.priority": request.priority.name.lower(),
                "pagemesh.num_sequences": request.num_sequences,
                "pagemesh.queue.reason": command.reason.value,
                "pagemesh.queue.outcome": _outcome(command),
            },
        )
        if isinstance(command, Placed):
            span.set_attribute("pagemesh.engine.id", command.engine.engine_id)
        span.end(ended_ns)


def _outcome(command: Placed | Refused | Withdrawn) -> str:
    return command.refusal.name.lower() if isinstance(command, Refused) else type(command).__name__.lower()


def _send_if_open(stream: MessageStream[Out, In], message: Out) -> None:
    """A stream that broke a moment ago is about to be disconnected; what it misses is settled there."""
    try:
        stream.send(message)
    except StreamBroken as error:
        logger.debug("not sent", extra={"cause": str(error)})
