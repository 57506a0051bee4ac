"""The allocation that paging replaced: one unbroken range per sequence, reserved when it starts. Pure.

A model of it, generous: no cost of its own, first fit, ranges freed the moment a sequence ends.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.kv.trace import TracedRequest

Reserve = Callable[[TracedRequest], int]
"""Slots that a sequence takes, at its start, for its whole life."""


class SlotRanges:
    """Free ranges of a pool of slots, in order; first fit."""

    def __init__(self, num_slots: int) -> None:
        self._free: list[tuple[int, int]] = [(0, num_slots)]

    def take(self, length: int) -> int | None:
        """Start of a range, or None if no free one is long enough."""
        for index, (start, end) in enumerate(self._free):
            if end - start >= length:
                self._free[index : index + 1] = [(start + length, end)] if end - start > length else []
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        """Frees a range and joins it with its neighbours."""
        self._free.append((start, start + length))
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for begin, end in self._free:
            if joined and joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        self._free = joined


@dataclass(slots=True)
class _Running:
    request: TracedRequest
    start: int
    num_tokens: int = 0

    @property
    def is_over(self) -> bool:
        return self.num_tokens >= self.request.num_tokens


class ContiguousEngine:
    """Steps a trace through the same budgets as the real engine: a token each, prompts in chunks."""

    def __init__(self, num_slots: int, reserve: Reserve, trace: Sequence[TracedRequest], chunk: int) -> None:
        self._ranges = SlotRanges(num_slots)
        self._reserve = reserve
        self._waiting = deque(trace)
        self._running: list[_Running] = []
        self._chunk = chunk

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_tokens(self) -> int:
        """Tokens whose keys and values lie in the pool."""
        return sum(running.num_tokens for running in self._running)

    @property
    def num_taken(self) -> int:
        """Slots that are reserved."""
        return sum(self._reserve(running.request) for running in self._running)

    def step(self) -> None:
        self._admit()
        room = self._chunk
        for running in self._running:
            num_behind = running.request.num_prompt - running.num_tokens
            grown = min(room, num_behind) if num_behind > 0 else 1
            room -= max(0, min(room, num_behind))
            running.num_tokens += grown
        for running in [it for it in self._running if it.is_over]:
            self._running.remove(running)
            self._ranges.give_back(running.start, self._reserve(running.request))

    def _admit(self) -> None:
        while self._waiting:
            start = self._ranges.take(self._reserve(self._waiting[0]))
            if start is None:
                return
            self._running.append(_Running(self._waiting.popleft(), start))
