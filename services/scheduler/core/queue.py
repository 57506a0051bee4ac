"""One model's waiting work: class, then the least-served tenant, then age.

Tenants are ordered by virtual tokens (start-time fair queueing): each is charged for what is placed, and one
that returns from idle is lifted to the level of those being served, so that idleness earns nothing.
Nobody starves: of `lower_class_every` placements in sequence one goes to a lower class that waits, and for a
while higher classes then leave it a like share of that engine's slots.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

from services.contract.priority import Priority
from services.scheduler.core.request import CLASSES, Entry, Request

MAX_LINES = 4096
"""Tenants remembered per class at least; beyond, idle ones are forgotten with what they were charged."""


@dataclass(slots=True, eq=False)
class Line:
    """One tenant's waiting entries of one class, oldest first."""

    tenant_key: bytes
    served: float
    """Virtual tokens it was charged."""
    heap: list[tuple[float, int, int, Entry]] = field(default_factory=list)
    """Arrival, number, position (dead if it is not the entry's own any more), entry."""
    num_live: int = 0
    version: int = 0
    """Of its one valid place in the order of tenants."""


OrderItem = tuple[float, float, int, Line]
"""Virtual tokens, its oldest entry's arrival, version, line."""


class ClassQueue:
    """Waiting entries of one class."""

    def __init__(self) -> None:
        self._lines: dict[bytes, Line] = {}
        self._order: list[OrderItem] = []
        self._forget_at = MAX_LINES
        self._level = 0.0
        self._last_number = 0
        self.num_entries = 0
        self.num_sequences = 0
        self.num_tokens = 0

    def push(self, entry: Entry) -> None:
        """Adds an entry; its age is its place in its tenant's line."""
        self._insert(self._line_of(entry.request.tenant_key), entry)

    def take(self) -> Entry | None:
        """Removes the next entry and charges its tenant; ends in `settle` or `put_back`."""
        line = self._first_line()
        if line is None:
            return None
        entry = _pop_live(line)
        self._drop(entry, line)
        entry.start_tag = line.served
        line.served += entry.request.cost
        if line.num_live:
            self._enter(line)
        return entry

    def settle(self, entry: Entry) -> None:
        """The taken entry was placed: those who return from idle are lifted to here."""
        self._level = max(self._level, entry.start_tag)

    def put_back(self, entry: Entry) -> None:
        """The taken entry found no engine: it waits on, uncharged."""
        self.refund(entry.request.tenant_key, entry.request.cost)
        self._insert(self._lines[entry.request.tenant_key], entry)

    def remove(self, entry: Entry) -> None:
        """Drops a waiting entry, wherever it stands."""
        line = self._lines[entry.request.tenant_key]
        self._drop(entry, line)
        if len(line.heap) > 2 * line.num_live + 16:
            line.heap = [item for item in line.heap if item[2] == item[3].line_number]
            heapq.heapify(line.heap)

    def charge(self, request: Request) -> None:
        """Charges a request that was placed without waiting."""
        line = self._line_of(request.tenant_key)
        if not self.num_entries:
            self._level = max(self._level, line.served)
        line.served += request.cost
        if line.num_live:
            self._enter(line)

    def refund(self, tenant_key: bytes, cost: float) -> None:
        """Takes a charge back: a ticket was returned or refused."""
        line = self._lines.get(tenant_key)
        if line is not None and cost:
            line.served -= cost
            if line.num_live:
                self._enter(line)

    def _line_of(self, tenant_key: bytes) -> Line:
        line = self._lines.get(tenant_key)
        if line is None:
            self._forget_idle()
            line = self._lines[tenant_key] = Line(tenant_key, self._level)
        elif not line.num_live:
            line.served = max(line.served, self._level)
        return line

    def _insert(self, line: Line, entry: Entry) -> None:
        entry.line_number = self._next_number()
        heapq.heappush(line.heap, (entry.arrived_at, entry.number, entry.line_number, entry))
        line.num_live += 1
        if line.num_live == 1 or line.heap[0][3] is entry:
            self._enter(line)
        self._count(entry, 1)

    def _forget_idle(self) -> None:
        if len(self._lines) >= self._forget_at:
            self._lines = {key: line for key, line in self._lines.items() if line.num_live}
            self._forget_at = max(MAX_LINES, 2 * len(self._lines))

    def _enter(self, line: Line) -> None:
        line.version = self._next_number()
        heapq.heappush(self._order, (line.served, line.heap[0][0], line.version, line))
        if len(self._order) > 2 * len(self._lines) + 64:
            self._order = [item for item in self._order if _is_current(item)]
            heapq.heapify(self._order)

    def _first_line(self) -> Line | None:
        while self._order:
            item = heapq.heappop(self._order)
            if _is_current(item):
                return item[3]
        return None

    def _drop(self, entry: Entry, line: Line) -> None:
        entry.line_number = 0
        line.num_live -= 1
        self._count(entry, -1)

    def _count(self, entry: Entry, sign: int) -> None:
        self.num_entries += sign
        self.num_sequences += sign * entry.request.num_sequences
        self.num_tokens += sign * entry.request.num_prompt_tokens

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number


def _is_current(item: OrderItem) -> bool:
    return item[2] == item[3].version and item[3].num_live > 0


def _pop_live(line: Line) -> Entry:
    while True:
        _, _, position, entry = heapq.heappop(line.heap)
        if position == entry.line_number:
            return entry


class ModelQueue:
    """The classes of one model and the order among them."""

    def __init__(self, lower_class_every: int) -> None:
        self._every = lower_class_every
        # Lists by class, not dictionaries: the hash of an enum member is a call into Python.
        self._classes = [ClassQueue() for _ in range(CLASSES[-1] + 1)]
        self._passed = [0] * len(self._classes)
        """Sequences of higher classes placed since this class had one, while it waited."""
        self.entries: dict[int, Entry] = {}
        """All that belong to this model by number, parked ones too."""

    def __getitem__(self, priority: Priority) -> ClassQueue:
        return self._classes[priority]

    def is_overdue(self, priority: Priority) -> bool:
        """True if the class waits and was passed often enough to go first."""
        return self._passed[priority] >= self._every and self._classes[priority].num_entries > 0

    def next_class(self, allowed: Collection[Priority]) -> Priority | None:
        """The class whose turn it is: the lowest overdue one, else the highest that waits."""
        if max(self._passed) >= self._every:
            for priority in reversed(CLASSES):
                if priority in allowed and self.is_overdue(priority):
                    return priority
        for priority in CLASSES:
            if priority in allowed and self._classes[priority].num_entries:
                return priority
        return None

    def turn_length(self, priority: Priority) -> int:
        """How many sequences the class may place before a lower one's turn."""
        if self.is_overdue(priority):
            return 1
        waiting = [each for each in CLASSES if each > priority and self._classes[each].num_entries]
        passed = max((self._passed[each] for each in waiting), default=0)
        return max(self._every - passed, 1)

    def note_placed(self, request: Request) -> None:
        """Counts a placement against the classes that wait below it."""
        self._passed[request.priority] = 0
        for priority in CLASSES:
            if priority > request.priority:
                has_waiting = self._classes[priority].num_entries > 0
                passed = self._passed[priority] + request.num_sequences
                self._passed[priority] = passed if has_waiting else 0

    def waiting(self) -> tuple[tuple[int, int], ...]:
        """Sequences and known ids that wait, by class in order."""
        return tuple((queue.num_sequences, queue.num_tokens) for queue in self._classes[CLASSES[0] :])


def pack(entries: Sequence[Entry], now: float, max_wait_s: float) -> Sequence[Entry]:
    """Brings entries of one length bucket together; one that waited for max_wait_s is not overtaken."""
    if len(entries) < 2:
        return entries
    ripe = [entry for entry in entries if now - entry.enqueued_at >= max_wait_s]
    buckets: dict[int, list[Entry]] = {}
    for entry in entries:
        if now - entry.enqueued_at < max_wait_s:
            buckets.setdefault(entry.request.bucket, []).append(entry)
    return [*ripe, *chain.from_iterable(buckets.values())]
