"""Timers without a clock: a heap of moments, each with what to do then; cancelled ones are dropped lazily."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[float], None]


@dataclass(slots=True, eq=False)
class Timer:
    """One moment. Without an action it has fired or was cancelled."""

    when: float
    action: Action | None


class Timers:
    """Owns the timers it arms."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._last_number = 0
        self._num_cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_cancelled

    def arm(self, when: float, action: Action) -> Timer:
        """Calls action(now) in the first `fire` at or after `when`."""
        timer = Timer(when, action)
        self._last_number += 1
        heapq.heappush(self._heap, (when, self._last_number, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Forgets a timer; one that fired is left alone."""
        if timer.action is None:
            return
        timer.action = None
        self._num_cancelled += 1
        if self._num_cancelled > len(self._heap) // 2 + 64:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._num_cancelled = 0

    def next_due(self) -> float | None:
        """When to call `fire` next."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._num_cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def fire(self, now: float) -> None:
        """Runs all actions that are due, in order of time."""
        while (due := self.next_due()) is not None and due <= now:
            timer = heapq.heappop(self._heap)[2]
            action, timer.action = timer.action, None
            assert action is not None, timer
            action(now)
