"""The Watch streams of all schedulers: each hears its share of the room and of its tickets what was met."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from pagemesh.v1 import engine_pb2
from services.chassis.stream import MessageStream
from services.contract.priority import Priority
from services.engine.core.outcome import TicketFate, TicketMet
from services.engine.core.running_set import RunningSet
from services.engine.room import divide, room_of, weights_of

REPORT_EVERY_S = 0.01
"""Changes between reports are told together."""

WatchStream = MessageStream[engine_pb2.WatchResponse, engine_pb2.WatchRequest]


@dataclass(slots=True)
class _Watcher:
    stream: WatchStream
    boot_id: str = ""
    is_greeted: bool = False
    """Its hello came: before that it is told nothing and has no share."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Sequences by class."""
    tickets: list[TicketMet] = field(default_factory=list)
    told: engine_pb2.EngineReport | None = None

    def num_waiting(self, priority: Priority) -> int:
        return self.waiting.get(priority, 0)


class Watchers:
    """Reports on change, to all, at most every REPORT_EVERY_S."""

    def __init__(self, running_set: RunningSet, mean_step_us: Callable[[], float]) -> None:
        self._running_set = running_set
        self._mean_step_us = mean_step_us
        self._watchers: dict[int, _Watcher] = {}
        self._numbers = itertools.count(1)
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def open(self, stream: WatchStream) -> int:
        """Returns the stream's number."""
        number = next(self._numbers)
        self._watchers[number] = _Watcher(stream)
        return number

    def close(self, number: int) -> None:
        """The others share its room."""
        del self._watchers[number]
        self.note_change()

    def take(self, number: int, request: engine_pb2.WatchRequest) -> None:
        """A scheduler said what waits there."""
        watcher = self._watchers[number]
        if request.HasField("hello"):
            self._greet(watcher, request.hello.boot_id)
        if request.has_waiting:
            # An unknown class is nobody's share.
            watcher.waiting = {work.priority: work.num_sequences for work in request.waiting}
        self.note_change()

    def note_change(self) -> None:
        """A report is due, now or when the last one is old enough."""
        if not self._watchers:
            # Whoever watches next is told of what lives then.
            self._running_set.news.take_tickets()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._last_s + REPORT_EVERY_S), self._report)

    def report_now(self) -> None:
        """Tells at once what has changed."""
        if self._timer is not None:
            self._timer.cancel()
        self._report()

    def _greet(self, watcher: _Watcher, boot_id: str) -> None:
        """The first report names all live tickets of this scheduler."""
        watcher.boot_id = boot_id
        watcher.is_greeted = True
        tickets = [sequence.admission.ticket for sequence in self._running_set.roster.live()]
        watcher.tickets = [
            TicketMet(boot_id, ticket.number, TicketFate.ADMITTED)
            for ticket in tickets
            if ticket is not None and ticket.scheduler_boot_id == boot_id
        ]

    def _report(self) -> None:
        self._timer = None
        self._last_s = asyncio.get_running_loop().time()
        self._hand_out(self._running_set.news.take_tickets())
        watchers = [it for it in self._watchers.values() if it.is_greeted and it.stream.is_open]
        for watcher, room in zip(watchers, self._shares(watchers), strict=True):
            self._tell(watcher, room)

    def _hand_out(self, tickets: list[TicketMet]) -> None:
        for met in tickets:
            for watcher in self._watchers.values():
                if watcher.is_greeted and watcher.boot_id == met.scheduler_boot_id:
                    watcher.tickets.append(met)

    def _shares(self, watchers: list[_Watcher]) -> list[list[engine_pb2.ClassRoom]]:
        shares: list[list[engine_pb2.ClassRoom]] = [[] for _ in watchers]
        for room in room_of(self._running_set) if watchers else ():
            weights = weights_of([watcher.num_waiting(room.priority) for watcher in watchers])
            parts = zip(divide(room.num_sequences, weights), divide(room.num_tokens, weights), strict=True)
            for share, (num_sequences, num_tokens) in zip(shares, parts, strict=True):
                share.append(_class_room(room.priority, num_sequences, num_tokens))
        return shares

    def _tell(self, watcher: _Watcher, room: list[engine_pb2.ClassRoom]) -> None:
        roster = self._running_set.roster
        report = engine_pb2.EngineReport(
            room=room,
            num_running=len(roster.running),
            num_waiting=len(roster.waiting),
            is_draining=self._running_set.is_draining,
        )
        if report == watcher.told and not watcher.tickets:
            return
        watcher.told = report
        told = engine_pb2.EngineReport()
        told.CopyFrom(report)
        told.step_us = int(self._mean_step_us())
        for met in watcher.tickets:
            told.tickets.add(number=met.number, outcome=engine_pb2.TicketOutcome.ValueType(met.fate))
        watcher.tickets = []
        watcher.stream.send(engine_pb2.WatchResponse(report=told))


def _class_room(priority: Priority, num_sequences: int, num_tokens: int) -> engine_pb2.ClassRoom:
    return engine_pb2.ClassRoom(
        priority=priority.value,  # type: ignore[arg-type]
        num_sequences=num_sequences,
        num_tokens=num_tokens,
    )
