"""The limits in time of one request: deadline, queue wait, run time, and how long nobody could serve it.

Times are seconds on the gateway's clock; it reads none itself.
"""

from math import inf

from services.contract.errors import MeshError, Reason, unavailable
from services.gateway.life.request_words import RequestSpec


def deadline_passed() -> MeshError:
    """The caller's deadline."""
    return MeshError(Reason.DEADLINE, "the deadline passed")


class Limits:
    """When the request is over, and why."""

    def __init__(self, spec: RequestSpec) -> None:
        self._spec = spec
        self._deadline_s = spec.deadline_s if spec.deadline_s is not None else inf
        self._started_s = 0.0
        self._first_admitted_s: float | None = None
        self._unserved_since_s: float | None = None
        self._waiting_since_s: float | None = None
        self._stranded_since_s: float | None = None

    def start(self, now: float) -> None:
        """Queueing begins."""
        self._started_s = now

    def admitted(self, now: float) -> None:
        """An admit was sent: the queue wait is over, the run time begins, once."""
        self._stranded_since_s = None
        if self._first_admitted_s is None:
            self._first_admitted_s = now

    def forget_admission(self) -> None:
        """That admit was refused, and there was no other."""
        self._first_admitted_s = None

    def serving(self, is_served: bool, now: float) -> None:
        """Whether any engine of the model can be asked for."""
        if is_served:
            self._unserved_since_s = None
        elif self._unserved_since_s is None:
            self._unserved_since_s = now

    def no_engine(self, now: float) -> MeshError | None:
        """A scheduler found none that this gateway can ask: the error once that has been so for too long.

        Schedulers may see engines all the while, out of this gateway's reach or too small for the request.
        """
        if self._stranded_since_s is None:
            self._stranded_since_s = now
        is_over = now - self._stranded_since_s >= self._spec.unserved_limit_s
        return self._unserved() if is_over else None

    def waiting(self, is_waiting: bool, now: float) -> None:
        """Whether a choice needs a place."""
        if not is_waiting:
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now

    def queue_limit_s(self) -> float | None:
        """Until when it may queue; None once it was admitted, or without such a limit."""
        was_admitted = self._spec.was_admitted or self._first_admitted_s is not None
        if self._spec.max_queue_wait_s is None or was_admitted:
            return None
        return self._started_s + self._spec.max_queue_wait_s

    def run_limit_s(self) -> float:
        """Until when it may run."""
        if self._spec.max_run_time_s is None or self._first_admitted_s is None:
            return inf
        return self._first_admitted_s + self._spec.max_run_time_s

    def next_s(self, is_unfinished: bool) -> float:
        """The nearest of all limits."""
        queue_limit_s = self.queue_limit_s()
        return min(
            self._deadline_s,
            inf if queue_limit_s is None else queue_limit_s,
            self.run_limit_s() if is_unfinished else inf,
            self._unserved_limit_s(),
        )

    def overdue(self, now: float) -> MeshError | None:
        """The error of the limit that has passed. A passed run time is none: it is an end."""
        if now >= self._deadline_s:
            return deadline_passed()
        queue_limit_s = self.queue_limit_s()
        if queue_limit_s is not None and now >= queue_limit_s:
            return MeshError(Reason.QUEUE_WAIT, f"queued for more than {self._spec.max_queue_wait_s:g} s")
        if now >= self._unserved_limit_s():
            return self._unserved()
        return None

    def _unserved(self) -> MeshError:
        return unavailable(f"no engine could be asked for {self._spec.unserved_limit_s:g} s")

    def _unserved_limit_s(self) -> float:
        if self._unserved_since_s is None or self._waiting_since_s is None:
            return inf
        return max(self._unserved_since_s, self._waiting_since_s) + self._spec.unserved_limit_s
