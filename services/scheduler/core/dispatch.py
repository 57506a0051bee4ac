"""One pass over a model's queue when credit appeared: turns by class, batches by bucket, bounded overtaking.

A request that waited for `max_wait_s` and finds too little room holds one engine: there, its class and those
below wait until its room has gathered. So nothing small starves something large.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.contract.priority import Priority
from services.scheduler.core.engines import Engine
from services.scheduler.core.fleet import ModelFleet
from services.scheduler.core.limits import Limits
from services.scheduler.core.queue import ModelQueue, pack
from services.scheduler.core.request import CLASSES, Entry

MAX_SKIPPED = 16
"""Entries of a class without a place, after which a pass looks no further."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What the pass asks of the core."""

    choose: Callable[[Entry, float], Engine | None]
    place: Callable[[Entry, Engine, float], None]
    homes: Callable[[Entry, float], Iterable[Engine]]
    """Engines that could take the entry some time."""


class Pass:
    """One pass; used once."""

    def __init__(
        self, queue: ModelQueue, fleet: ModelFleet, placing: Placing, limits: Limits, now: float
    ) -> None:
        self._queue = queue
        self._fleet = fleet
        self._placing = placing
        self._limits = limits
        self._now = now
        self._left: dict[Priority, list[Entry]] = {priority: [] for priority in CLASSES}
        self._held: set[Priority] = set()

    def run(self) -> None:
        """Places what has credit, in order; what has none goes back to where it stood."""
        self._fleet.release_holds()
        while (priority := self._next_class()) is not None:
            is_overdue = self._queue.is_overdue(priority)
            for entry in pack(self._take(priority), self._now, self._limits.max_wait_s):
                if not self._try_place(entry, is_overdue):
                    self._left[priority].append(entry)
                    self._hold_for(entry, is_overdue)
        for priority, entries in self._left.items():
            for entry in entries:
                self._queue[priority].put_back(entry)

    def _next_class(self) -> Priority | None:
        allowed = [each for each in CLASSES if self._fleet.open[each] and len(self._left[each]) < MAX_SKIPPED]
        return self._queue.next_class(allowed) if allowed else None

    def _take(self, priority: Priority) -> list[Entry]:
        """As many as the credit may last for: the hint of the bucket deviates no further."""
        limit = min(self._queue.turn_length(priority), self._limits.max_batch_size)
        num_sequences, num_tokens = self._fleet.usable(priority, limit)
        limit = min(limit, num_sequences)
        taken: list[Entry] = []
        while limit > 0 and (not taken or num_tokens > 0) and (entry := self._queue[priority].take()):
            taken.append(entry)
            limit -= entry.request.num_sequences
            num_tokens -= entry.request.num_prompt_tokens
        return taken

    def _try_place(self, entry: Entry, is_overdue: bool) -> bool:
        engine = self._placing.choose(entry, self._now)
        if engine is None:
            return False
        self._queue[entry.request.priority].settle(entry)
        if is_overdue:
            engine.keep(self._limits.lower_class_every, self._now)
        self._placing.place(entry, engine, self._now)
        return True

    def _hold_for(self, entry: Entry, is_overdue: bool) -> None:
        """At most one hold per class and pass; one for an overdue class shuts out higher classes as well."""
        priority = entry.request.priority
        if priority in self._held or self._now - entry.enqueued_at < self._limits.max_wait_s:
            return
        homes = [engine for engine in self._placing.homes(entry, self._now) if engine.hold is None]
        if homes:
            roomiest = max(homes, key=lambda engine: engine.credit.usable_tokens(priority))
            self._fleet.hold(roomiest, entry, Priority.REALTIME if is_overdue else priority)
            self._held.add(priority)
