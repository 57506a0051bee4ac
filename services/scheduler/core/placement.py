"""The placement core: events and a clock in, commands out. It decides where and when each request starts.

It knows no sockets, clocks or random sources; a jitter source (0..1) is passed in.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from services.contract.priority import Priority
from services.scheduler.core.batch import Batcher, Placement
from services.scheduler.core.choice import choose
from services.scheduler.core.commands import Command, ModelsChanged, News, Refused, TicketGivenUp, Withdrawn
from services.scheduler.core.credit import IssuedTicket
from services.scheduler.core.dispatch import Pass, Placing
from services.scheduler.core.engines import NOTHING_UNREACHABLE, Engine, EngineFacts, EngineReport
from services.scheduler.core.fleet import Fleet, ModelFacts
from services.scheduler.core.limits import Limits
from services.scheduler.core.request import Entry, Refusal, Request
from services.scheduler.core.tickets import Tickets
from services.scheduler.core.timers import Timers
from services.scheduler.core.waiting_report import WaitingReport
from services.scheduler.core.waiting_room import WaitingRoom

MAX_AVOID_DOUBLINGS = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `enqueue` would do now."""

    engine_id: str
    """Empty if it would wait or be refused."""
    bucket: int
    num_ahead: int
    snapshot_age_s: float
    refusal: Refusal | None


class PlacementCore:
    """Every enqueue ends exactly once: placed, refused, or withdrawn by its gateway."""

    def __init__(self, limits: Limits, jitter: Callable[[], float]) -> None:
        self._limits = limits
        self._jitter = jitter
        self._timers = Timers()
        self._fleet = Fleet()
        self._room = WaitingRoom(limits, self._timers, self._fleet, self._refuse)
        self._tickets = Tickets(self._timers, limits.ticket_wait_s, self._on_given_up)
        self._batcher = Batcher(limits.max_batch_size, limits.max_batch_tokens)
        self._placing = Placing(self._choose, self._place, self._room.homes)
        self._reports: dict[str, WaitingReport] = {}
        self._models: tuple[ModelFacts, ...] = ()
        self._fleet_version = 0
        self._last_number = 0
        self._is_draining = False
        self._out: list[Command] = []

    # Events. Each returns what is to be done.

    def open_stream(self) -> int:
        """A gateway's Place stream began; returns its name here."""
        stream_id = self._next_number()
        self._room.open(stream_id)
        return stream_id

    def close_stream(self, stream_id: int, now: float) -> list[Command]:
        """The stream is gone: its queue is forgotten, its tickets count until named or given up."""
        for entry in self._room.of_stream(stream_id):
            self._end_withdrawn(entry, now)
        self._room.close(stream_id)
        return self._finish(now)

    def enqueue(self, stream_id: int, requests: Iterable[Request], now: float) -> list[Command]:
        """New waiting work; what has credit leaves at once."""
        for request in sorted(requests, key=lambda each: (each.priority, -each.age_s)):
            is_known = self._room.find(stream_id, request.handle) is not None
            if is_known or self._tickets.is_placed(stream_id, request.handle):
                self._refuse_invalid(stream_id, request, now)
            else:
                self._arrive(self._entry(stream_id, request, now), now)
        return self._finish(now)

    def refuse_invalid(self, stream_id: int, request: Request, now: float) -> list[Command]:
        """An enqueue that breaks the contract. If its handle waits already, both end: it has one end."""
        self._refuse_invalid(stream_id, request, now)
        return self._finish(now)

    def withdraw(self, stream_id: int, handle: int, now: float) -> list[Command]:
        """Removes a queued handle, or takes a placed one's tickets back. Others are ignored: they crossed."""
        entry = self._room.find(stream_id, handle)
        if entry is not None:
            self._end_withdrawn(entry, now)
        elif (taken_back := self._tickets.take_back(stream_id, handle)) is not None:
            engine, tickets = taken_back
            self._refund(tickets)
            self._credit_changed(engine)
        return self._finish(now)

    def reach(self, stream_id: int, engine_id: str, boot_id: str, is_up: bool, now: float) -> list[Command]:
        """The gateway's word on its own Run stream to an engine process."""
        self._room.set_reach(stream_id, engine_id, boot_id, is_up, now)
        return self._finish(now)

    def engine_hello(self, facts: EngineFacts, now: float) -> list[Command]:
        """An engine process is up, new or on a new call. It gets nothing before its first report."""
        for engine in self._fleet.hello(facts):
            self._take_down(engine, now)
        self._room.review_model(facts.model, now)
        self._report_of(facts.model).tell(now)
        return self._finish(now)

    def engine_report(self, boot_id: str, report: EngineReport, now: float) -> list[Command]:
        """Absolute room, and the tickets that the engine met."""
        engine = self._fleet.get(boot_id)
        assert engine is not None and engine.is_up, boot_id
        self._tickets.release(engine, (*report.admitted, *report.ended))
        self._refund(self._tickets.release(engine, report.refused))
        is_changed = engine.is_draining != report.is_draining
        engine.take(report, now)
        self._credit_changed(engine)
        if is_changed:
            self._room.review_model(engine.facts.model, now)
        return self._finish(now)

    def engine_down(self, boot_id: str, now: float) -> list[Command]:
        """The Watch stream is down: nothing new is placed there."""
        engine = self._fleet.get(boot_id)
        if engine is not None and engine.is_up:
            self._take_down(engine, now)
        return self._finish(now)

    def tick(self, now: float) -> list[Command]:
        """Time passed; due at `next_due` at the latest."""
        self._timers.fire(now)
        return self._finish(now)

    def drain(self, now: float) -> list[Command]:
        """From now on everything is refused DRAINING: gateways go elsewhere."""
        self._is_draining = True
        for entry in list(self._room):
            self._refuse(entry, Refusal.DRAINING, now)
        return self._finish(now)

    # Questions. They change nothing.

    def next_due(self) -> float | None:
        """When `tick` must be called next."""
        return self._timers.next_due()

    @property
    def models(self) -> tuple[ModelFacts, ...]:
        """What the fleet offers."""
        return self._models

    def engines(self) -> Iterator[Engine]:
        """All known processes, for display."""
        return iter(self._fleet)

    def is_watched(self, boot_id: str) -> bool:
        """True if this process's Watch stream is up already."""
        engine = self._fleet.get(boot_id)
        return engine is not None and engine.is_up

    def waiting(self, priority: Priority) -> tuple[int, int]:
        """Sequences and known ids of a class that wait, over all models."""
        return self._room.backlog.waiting(priority)

    def oldest_age_s(self, priority: Priority, now: float) -> float:
        """Age of the class's oldest request; 0 if none waits."""
        return self._room.oldest_age_s(priority, now)

    def explain(self, request: Request, now: float) -> Explanation:
        """Place's own decision on the state as it is, for a gateway that reaches every engine."""
        fleet, queue = self._fleet.of(request.model), self._room.peek(request.model)
        refusal = self._refusal(request)
        engine = None
        if refusal is None:
            engine = choose(request, fleet, NOTHING_UNREACHABLE, may_use_avoided=False)
            refusal = Refusal.QUEUE_FULL if engine is None and self._room.backlog.is_full(request) else None
        num_ahead = queue[request.priority].num_sequences if engine is None and queue is not None else 0
        age_s = now - min((each.reported_at for each in fleet if each.has_reported), default=now)
        engine_id = engine.facts.engine_id if engine is not None else ""
        return Explanation(engine_id, request.bucket, num_ahead, age_s, refusal)

    # Arrival.

    def _entry(self, stream_id: int, request: Request, now: float) -> Entry:
        avoid_until = now
        if request.avoid_engine_ids:
            doublings = min(max(request.num_crashes - 1, 0), MAX_AVOID_DOUBLINGS)
            backoff_s = self._limits.avoid_backoff_s * 2**doublings
            avoid_until = now + backoff_s * (0.5 + 0.5 * self._jitter())
        return Entry(request, stream_id, self._next_number(), now, now - request.age_s, avoid_until)

    def _arrive(self, entry: Entry, now: float) -> None:
        request, backlog = entry.request, self._room.backlog
        if (refusal := self._refusal(request)) is not None:
            self._refuse(entry, refusal, now)
        elif (engine := self._choose(entry, now)) is not None:
            self._room.queue(request.model)[request.priority].charge(request)
            self._place(entry, engine, now)
        elif backlog.is_full(request):
            retry_delay_s = backlog.retry_delay_s(request.priority, self._jitter(), now)
            self._refuse(entry, Refusal.QUEUE_FULL, now, retry_delay_s)
        else:
            num_ahead = self._room.queue(request.model)[request.priority].num_sequences
            self._out.append(News(entry.stream_id, request.handle, num_ahead))
            self._room.add(entry, now)

    def _refusal(self, request: Request) -> Refusal | None:
        if self._is_draining:
            return Refusal.DRAINING
        fleet = self._fleet.of(request.model)
        if len(fleet) and not request.was_admitted and not fleet.can_hold(request):
            return Refusal.TOO_LARGE
        return None

    # Placing.

    def _choose(self, entry: Entry, now: float) -> Engine | None:
        fleet = self._fleet.of(entry.request.model)
        unreachable = self._room.unreachable(entry.stream_id)
        return choose(entry.request, fleet, unreachable, now >= entry.avoid_until)

    def _place(self, entry: Entry, engine: Engine, now: float) -> None:
        request = entry.request
        self._room.leave(entry)
        numbers = self._tickets.issue(engine, entry, now)
        self._fleet.refresh(engine)
        self._room.queue(request.model).note_placed(request)
        self._room.backlog.note_placed(request, now)
        queued_s = now - entry.enqueued_at
        self._batcher.add(Placement(entry.stream_id, request, engine.facts, numbers, queued_s, entry.reason))

    def _dispatch(self, model: str, now: float) -> None:
        queue = self._room.peek(model)
        if queue is not None and queue.entries:
            Pass(queue, self._fleet.of(model), self._placing, self._limits, now).run()

    def _credit_changed(self, engine: Engine) -> None:
        self._fleet.refresh(engine)
        self._fleet.forget_if_dead(engine)
        self._room.stirred.add(engine.facts.model)

    def _on_given_up(self, engine: Engine, ticket: IssuedTicket, now: float) -> None:
        self._out.append(TicketGivenUp(engine.facts.engine_id, ticket.number))
        self._refund([ticket])
        self._credit_changed(engine)

    def _refund(self, tickets: Iterable[IssuedTicket]) -> None:
        for ticket in tickets:
            self._room.refund(ticket.request, ticket.cost)

    def _take_down(self, engine: Engine, now: float) -> None:
        self._fleet.down(engine)
        self._fleet.forget_if_dead(engine)
        self._room.review_model(engine.facts.model, now)

    # Ends.

    def _refuse(self, entry: Entry, refusal: Refusal, now: float, retry_delay_s: float = 0.0) -> None:
        self._room.leave(entry)
        wait = (now - entry.enqueued_at, entry.reason)
        self._out.append(Refused(entry.stream_id, entry.request, refusal, *wait, retry_delay_s))

    def _refuse_invalid(self, stream_id: int, request: Request, now: float) -> None:
        entry = self._room.find(stream_id, request.handle)
        self._refuse(entry or self._entry(stream_id, request, now), Refusal.INVALID, now)

    def _end_withdrawn(self, entry: Entry, now: float) -> None:
        self._room.leave(entry)
        self._out.append(Withdrawn(entry.stream_id, entry.request, now - entry.enqueued_at, entry.reason))

    # The end of an event.

    def _finish(self, now: float) -> list[Command]:
        stirred, self._room.stirred = self._room.stirred, set()
        for model in stirred:
            self._dispatch(model, now)
        self._out.extend(self._batcher.flush())
        touched, self._room.touched = self._room.touched, set()
        for model in touched:
            self._report_waiting(model, now)
        if self._fleet_version != self._fleet.version:
            self._fleet_version = self._fleet.version
            self._announce_models()
        out, self._out = self._out, []
        return out

    def _announce_models(self) -> None:
        models = self._fleet.models()
        if models != self._models:
            self._models = models
            self._out.append(ModelsChanged(models))

    def _report_waiting(self, model: str, now: float) -> None:
        self._report_of(model).update(self._room.queue(model).waiting(), now)
        if self._room.forget_if_unused(model):
            self._reports.pop(model).stop()

    def _report_of(self, model: str) -> WaitingReport:
        if model not in self._reports:
            self._reports[model] = WaitingReport(model, self._timers, self._emit)
        return self._reports[model]

    def _emit(self, command: Command) -> None:
        self._out.append(command)

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number
