"""The requests that run in this gateway: a higher client_attempt of a request takes over from a lower one.

Ended ones that reached an engine are remembered for a minute, as engines do. It knows no more of a request.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.contract.errors import MeshError, Reason
from services.gateway.life.request import superseded

REMEMBER_S = 60.0
MAX_REMEMBERED = 100_000

InterruptFn = Callable[[MeshError], None]


@dataclass(eq=False, slots=True)
class RunningRequest:
    """One running attempt, and how to end it."""

    client_attempt: int
    interrupt: InterruptFn
    was_admitted: bool = False
    """Set once an engine may know it: then this attempt cannot be used again."""


class RunningRequests:
    """At most one attempt of a request runs here."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: dict[tuple[str, str], RunningRequest] = {}
        self._ended: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def enter(
        self, tenant: str, request_id: str, client_attempt: int, interrupt: InterruptFn
    ) -> Iterator[RunningRequest]:
        """Runs an attempt. Raises MeshError SUPERSEDED if an equal or higher one runs, or ran just now."""
        key = tenant, request_id
        self._check(key, client_attempt)
        before = self._running.get(key)
        entry = RunningRequest(client_attempt, interrupt)
        self._running[key] = entry
        if before is not None:
            before.interrupt(superseded())
        try:
            yield entry
        finally:
            if self._running.get(key) is entry:
                del self._running[key]
            if entry.was_admitted:
                self._remember(key, client_attempt)

    def interrupt_all(self, error: MeshError) -> None:
        """Ends all that run."""
        for entry in list(self._running.values()):
            entry.interrupt(error)

    def _check(self, key: tuple[str, str], client_attempt: int) -> None:
        self._forget()
        entry = self._running.get(key)
        known = entry.client_attempt if entry is not None else self._ended.get(key, (-1, 0.0))[0]
        if client_attempt <= known:
            message = f"client_attempt {known} of this request_id is known; given {client_attempt}"
            raise MeshError(Reason.SUPERSEDED, message, field="client_attempt")

    def _remember(self, key: tuple[str, str], client_attempt: int) -> None:
        highest = max(client_attempt, self._ended.pop(key, (-1, 0.0))[0])
        self._ended[key] = highest, self._clock() + REMEMBER_S
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def _forget(self) -> None:
        now = self._clock()
        while self._ended:
            key, (_, until_s) = next(iter(self._ended.items()))
            if until_s > now:
                break
            del self._ended[key]
