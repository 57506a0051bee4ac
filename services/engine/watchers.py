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
from services.engine.room import Turn, divide, room_of

REPORT_EVERY_S = 0.01
"""Changes between reports are told together."""
QUIET_EVERY_S = 0.25
"""Where only the tokens of the room have changed, as they do in almost every step."""
TURN_S = 0.1
"""How long the work of one scheduler may keep the others' from the room."""

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


class Watchers:
    """Reports on change, to all, at most every REPORT_EVERY_S."""

    def __init__(self, running_set: RunningSet, mean_step_us: Callable[[], float]) -> None:
        self._running_set = running_set
        self._mean_step_us = mean_step_us
        self._watchers: dict[int, _Watcher] = {}
        self._numbers = itertools.count(1)
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._counts = (0, 0, False)
        """As they stood at the last report."""
        self._turns = {priority: Turn() for priority in Priority}
        self._turn_timer: asyncio.TimerHandle | None = None

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
        else:
            self._report_after(REPORT_EVERY_S)

    def note_step(self) -> None:
        """Sequences drew ids, came or went."""
        if not self._watchers or self._running_set.news.has_tickets or self._counts != self._count():
            self.note_change()
        else:
            self._report_after(QUIET_EVERY_S)

    def report_now(self) -> None:
        """Tells at once what has changed."""
        self._cancel_timer()
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

    def _report_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        when_s = max(loop.time(), self._last_s + seconds)
        if self._timer is None or when_s < self._timer.when():
            self._cancel_timer()
            self._timer = loop.call_at(when_s, self._report)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self) -> tuple[int, int, bool]:
        roster = self._running_set.roster
        return len(roster.running), len(roster.waiting), self._running_set.is_draining

    def _report(self) -> None:
        self._timer = None
        self._last_s = asyncio.get_running_loop().time()
        self._counts = self._count()
        self._hand_out(self._running_set.news.take_tickets())
        shares = self._shares()
        for number, room in shares.items():
            self._tell(self._watchers[number], room)
        if len(shares) > 1 and self._turn_timer is None and any(map(self._is_contended, Priority)):
            self._turn_timer = asyncio.get_running_loop().call_later(TURN_S, self._pass_turns)

    def _pass_turns(self) -> None:
        self._turn_timer = None
        for priority, turn in self._turns.items():
            turn.pass_on(self._work(priority))
        self.note_change()

    def _is_contended(self, priority: Priority) -> bool:
        return len(self._work(priority)) > 1

    def _work(self, priority: Priority) -> dict[int, int]:
        """Waiting sequences of a class, by those schedulers that have any."""
        waiting = {number: it.waiting.get(priority, 0) for number, it in self._listeners().items()}
        return {number: num_waiting for number, num_waiting in waiting.items() if num_waiting}

    def _listeners(self) -> dict[int, _Watcher]:
        return {number: it for number, it in self._watchers.items() if it.is_greeted and it.stream.is_open}

    def _hand_out(self, tickets: list[TicketMet]) -> None:
        for met in tickets:
            for watcher in self._watchers.values():
                if watcher.is_greeted and watcher.boot_id == met.scheduler_boot_id:
                    watcher.tickets.append(met)

    def _shares(self) -> dict[int, list[engine_pb2.ClassRoom]]:
        """By scheduler. Where nothing waits, each may place its next request at once."""
        numbers = list(self._listeners())
        shares: dict[int, list[engine_pb2.ClassRoom]] = {number: [] for number in numbers}
        for room in room_of(self._running_set) if numbers else ():
            holder = self._turns[room.priority].holder(self._work(room.priority))
            among = [holder] if holder is not None else numbers
            sequences = dict(zip(among, divide(room.num_sequences, len(among)), strict=True))
            tokens = dict(zip(among, divide(room.num_tokens, len(among)), strict=True))
            for number, share in shares.items():
                share.append(_class_room(room.priority, sequences.get(number, 0), tokens.get(number, 0)))
        return shares

    def _tell(self, watcher: _Watcher, room: list[engine_pb2.ClassRoom]) -> None:
        num_running, num_waiting, is_draining = self._counts
        report = engine_pb2.EngineReport(
            room=room, num_running=num_running, num_waiting=num_waiting, is_draining=is_draining
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
