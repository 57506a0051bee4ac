"""Decides what is warm-up, what is measured, and which window the rates are of. Pure.

The window opens with the first measured conversation and closes when there is none left to begin: in
between, and only then, the load is what was asked for. Tokens of warm-up that arrive inside count, later
ones do not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: the clock, and the tool's own CPU time until then."""

    at_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """What rates are of. `end` may be marked later than `end_s`, when nothing had to be done at that time."""

    begin_s: float
    end_s: float
    own_cpu_s: float
    """CPU time of the tool between the marks."""
    marked_s: float
    """Seconds between the marks."""

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


class Meter:
    """Asked once before each conversation, in the order in which they are due."""

    def __init__(self, num_warmup: int, num_requests: int | None, duration_s: float | None) -> None:
        self._num_warmup = num_warmup
        self._num_requests = num_requests
        self._duration_s = duration_s
        self._begin: Mark | None = None
        self._end: Mark | None = None
        self._end_s = 0.0
        self.num_begun = 0
        """Conversations, warm-up included."""

    @property
    def num_measured(self) -> int:
        return max(0, self.num_begun - self._num_warmup)

    def admit(self, now: Mark) -> bool | None:
        """True if the next conversation is measured, False if it is warm-up, None if there is none left."""
        if self._end is not None:
            return None
        if self._begin is not None and self._duration_s is not None:
            deadline_s = self._begin.at_s + self._duration_s
            if now.at_s >= deadline_s:
                self.close(now, deadline_s)
                return None
        if self._num_requests is not None and self.num_measured >= self._num_requests:
            self.close(now, now.at_s)
            return None
        if self.num_begun == self._num_warmup:
            self._begin = now
        self.num_begun += 1
        return self._begin is not None

    def close(self, now: Mark, end_s: float) -> None:
        """There is nothing left to begin."""
        if self._end is None:
            self._end, self._end_s = now, end_s

    def window(self, last_end_s: float) -> Window | None:
        """None if nothing was measured. Without length (a single request) it goes to the last end."""
        if self._begin is None or self._end is None:
            return None
        end_s = self._end_s if self._end_s > self._begin.at_s else last_end_s
        return Window(
            self._begin.at_s,
            end_s,
            self._end.cpu_s - self._begin.cpu_s,
            self._end.at_s - self._begin.at_s,
        )


def merged(windows: list[Window]) -> Window:
    """Of several processes: the time in which all were at full load, and the sum of their CPU."""
    return Window(
        max(window.begin_s for window in windows),
        min(window.end_s for window in windows),
        sum(window.own_cpu_s for window in windows),
        sum(window.marked_s for window in windows) / len(windows),
    )
