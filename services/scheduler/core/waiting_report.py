"""When engines are told of waiting work: at once when a class becomes nonempty, else by interval."""

from collections.abc import Callable

from services.scheduler.core.commands import ReportWaiting
from services.scheduler.core.request import CLASSES
from services.scheduler.core.timers import Timer, Timers

REPORT_INTERVAL_S = 0.02

Work = tuple[tuple[int, int], ...]
NO_WORK: Work = tuple((0, 0) for _ in CLASSES)


class WaitingReport:
    """What one model's engines were told last."""

    def __init__(self, model: str, timers: Timers, emit: Callable[[ReportWaiting], None]) -> None:
        self._model = model
        self._timers = timers
        self._emit = emit
        self._told: Work = NO_WORK
        self._told_at = float("-inf")
        self._current: Work = NO_WORK
        self._timer: Timer | None = None

    def update(self, work: Work, now: float) -> None:
        """Takes the queue's state, (sequences, known ids) by class."""
        self._current = work
        if work == self._told:
            return
        is_new = any(after[0] and not before[0] for before, after in zip(self._told, work, strict=True))
        if is_new or now - self._told_at >= REPORT_INTERVAL_S:
            self.tell(now)
        elif self._timer is None:
            self._timer = self._timers.arm(self._told_at + REPORT_INTERVAL_S, self._fire)

    def tell(self, now: float) -> None:
        """Reports the state as it is: an engine that was just met knows nothing."""
        self.stop()
        self._told, self._told_at = self._current, now
        self._emit(ReportWaiting(self._model, dict(zip(CLASSES, self._current, strict=True))))

    def stop(self) -> None:
        """Reports nothing more by itself."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None

    def _fire(self, now: float) -> None:
        self._timer = None
        if self._current != self._told:
            self.tell(now)
