"""Everything that waits, by gateway stream and by model, with the limits of its waiting.

A request that no engine could take, now or later, is parked: it stands in nobody's way, and is refused after
a while unless the fleet or its gateway's reach changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.contract.priority import Priority
from services.scheduler.core.backlog import Backlog
from services.scheduler.core.engines import Engine, usable
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.limits import Limits
from services.scheduler.core.queue import ModelQueue
from services.scheduler.core.request import Entry, EntryState, QueueReason, Refusal, Request
from services.scheduler.core.timers import Timers

Refuse = Callable[[Entry, Refusal, float], None]


@dataclass(slots=True, eq=False)
class GatewayStream:
    """What one Place stream has here."""

    waiting: dict[int, Entry] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    """Engine id -> boot id of processes to which the gateway's Run stream is down."""


class WaitingRoom:
    """Owns streams, queues and the timers of what waits."""

    def __init__(self, limits: Limits, timers: Timers, fleet: Fleet, refuse: Refuse) -> None:
        self._limits = limits
        self._timers = timers
        self._fleet = fleet
        self._refuse = refuse
        self._streams: dict[int, GatewayStream] = {}
        self._queues: dict[str, ModelQueue] = {}
        self.backlog = Backlog(limits.max_queued_sequences, limits.max_queued_tokens)
        self.touched: set[str] = set()
        """Models whose waiting work changed since the owner cleared this."""
        self.stirred: set[str] = set()
        """Models whose queue may have someone to place now."""

    def open(self, stream_id: int) -> None:
        """A stream began."""
        self._streams[stream_id] = GatewayStream()

    def close(self, stream_id: int) -> None:
        """A stream ended, its entries having left."""
        assert not self._streams[stream_id].waiting, stream_id
        del self._streams[stream_id]

    def find(self, stream_id: int, handle: int) -> Entry | None:
        """The waiting entry."""
        return self._streams[stream_id].waiting.get(handle)

    def of_stream(self, stream_id: int) -> list[Entry]:
        """All that wait for one gateway."""
        return list(self._streams[stream_id].waiting.values())

    def __iter__(self) -> Iterator[Entry]:
        return (entry for stream in self._streams.values() for entry in stream.waiting.values())

    def queue(self, model: str) -> ModelQueue:
        """A model's queue."""
        if model not in self._queues:
            self._queues[model] = ModelQueue(self._limits.lower_class_every)
        return self._queues[model]

    def peek(self, model: str) -> ModelQueue | None:
        """A model's queue, if it has one."""
        return self._queues.get(model)

    def forget_if_unused(self, model: str) -> bool:
        """Drops a queue that is empty and has no engine."""
        is_unused = not self._queues[model].entries and not len(self._fleet.of(model))
        if is_unused:
            del self._queues[model]
        return is_unused

    def unreachable(self, stream_id: int) -> Mapping[str, str]:
        """What the gateway said it cannot reach."""
        return self._streams[stream_id].unreachable

    def set_reach(self, stream_id: int, engine_id: str, boot_id: str, is_up: bool, now: float) -> None:
        """Takes a gateway's word on an engine process."""
        stream = self._streams[stream_id]
        if not is_up:
            stream.unreachable[engine_id] = boot_id
        elif stream.unreachable.get(engine_id) == boot_id:
            del stream.unreachable[engine_id]
        self._review(stream.waiting.values(), now)

    def homes(self, entry: Entry, now: float) -> Iterator[Engine]:
        """Engines that could take the entry, now or later."""
        request = entry.request
        avoided = request.avoid_engine_ids if now < entry.avoid_until else frozenset()
        return usable(self._fleet.of(request.model), request, self.unreachable(entry.stream_id), avoided)

    def add(self, entry: Entry, now: float) -> None:
        """The entry begins to wait."""
        request = entry.request
        self._streams[entry.stream_id].waiting[request.handle] = entry
        self.queue(request.model).entries[entry.number] = entry
        self.backlog.add(request)
        self._arm(entry, request.queue_time_left_s, Refusal.QUEUE_WAIT, now)
        self._arm(entry, request.time_left_s, Refusal.DEADLINE, now)
        if entry.avoid_until > now:
            retry = self._timers.arm(entry.avoid_until, lambda _: self.stirred.add(request.model))
            entry.timers.append(retry)
        if self._has_home(entry):
            self._line_up(entry)
        else:
            self._park(entry, now)

    def leave(self, entry: Entry) -> None:
        """The entry has met its one end."""
        assert entry.state is not EntryState.GONE, entry
        if entry.state is not EntryState.NEW:
            self._leave_line(entry)
            del self._streams[entry.stream_id].waiting[entry.request.handle]
            self.touched.add(entry.request.model)
            del self.queue(entry.request.model).entries[entry.number]
            self.backlog.remove(entry.request)
            for timer in entry.timers:
                self._timers.cancel(timer)
            self._stop_home_timer(entry)
        entry.state = EntryState.GONE

    def review_model(self, model: str, now: float) -> None:
        """The fleet changed: who has a home now lines up, who has none any more stands aside."""
        if (queue := self._queues.get(model)) is not None:
            self.touched.add(model)
            self._review(queue.entries.values(), now)

    def _review(self, entries: Iterable[Entry], now: float) -> None:
        for entry in entries:
            self.stirred.add(entry.request.model)
            has_home = self._has_home(entry)
            if has_home and entry.state is EntryState.PARKED:
                self._line_up(entry)
            elif not has_home and entry.state is EntryState.WAITING:
                self._leave_line(entry)
                self._park(entry, now)

    def _has_home(self, entry: Entry) -> bool:
        fleet = self._fleet.of(entry.request.model)
        return fleet.can_hold(entry.request, self.unreachable(entry.stream_id))

    def _line_up(self, entry: Entry) -> None:
        if entry.reason is QueueReason.NONE:
            entry.reason = QueueReason.NO_ROOM
        self._stop_home_timer(entry)
        entry.state = EntryState.WAITING
        self.touched.add(entry.request.model)
        self.queue(entry.request.model)[entry.request.priority].push(entry)

    def _park(self, entry: Entry, now: float) -> None:
        entry.state, entry.reason = EntryState.PARKED, QueueReason.NO_ENGINE
        when = now + self._limits.no_engine_wait_s
        entry.home_timer = self._timers.arm(when, self._refuser(entry, Refusal.NO_ENGINE))

    def _leave_line(self, entry: Entry) -> None:
        if entry.hold is not None:
            self._fleet.of(entry.request.model).release_hold(entry.hold)
            self.stirred.add(entry.request.model)
        self.touched.add(entry.request.model)
        if entry.line_number:
            self.queue(entry.request.model)[entry.request.priority].remove(entry)

    def _arm(self, entry: Entry, left_s: float | None, refusal: Refusal, now: float) -> None:
        if left_s is not None:
            entry.timers.append(self._timers.arm(now + left_s, self._refuser(entry, refusal)))

    def _refuser(self, entry: Entry, refusal: Refusal) -> Callable[[float], None]:
        return lambda now: self._refuse(entry, refusal, now)

    def _stop_home_timer(self, entry: Entry) -> None:
        if entry.home_timer is not None:
            self._timers.cancel(entry.home_timer)
            entry.home_timer = None

    def refund(self, request: Request, cost: float) -> None:
        """A tenant gets back what it was charged: its ticket was of no use."""
        if (queue := self._queues.get(request.model)) is not None:
            queue[request.priority].refund(request.tenant_key, cost)

    def oldest_age_s(self, priority: Priority, now: float) -> float:
        """Age of the class's oldest request; 0 if none waits."""
        ages = (now - entry.arrived_at for entry in self if entry.request.priority == priority)
        return max(ages, default=0.0)
