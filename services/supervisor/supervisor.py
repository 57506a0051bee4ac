"""Starts the processes, keeps them running, ends them in order."""

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from services.chassis.backoff import Backoff
from services.supervisor.child import Child, OnLine
from services.supervisor.plan import DRAIN_ORDER, ProcessSpec

POLL_S = 0.1
FIRST_RESTART_S = 0.5
LONGEST_RESTART_S = 30.0
STEADY_S = 30.0
"""A process that was up so long starts its backoff anew."""
KILL_S = 5.0
"""Beyond the drain time, before a process that does not end is killed."""


class StartError(Exception):
    """A process ended, or was not ready in time, at the first start. One line."""


class Supervisor:
    """Owns the children. Signals and waits only; no thread of its own but the children's readers."""

    def __init__(
        self, specs: Sequence[ProcessSpec], on_line: OnLine, environment: Mapping[str, str] | None = None
    ) -> None:
        self.children = {spec.name: Child(spec, on_line, environment or {}) for spec in specs}
        self._on_line = on_line

    def start(self) -> None:
        """Starts every process at once; see `wait_ready`."""
        for child in self.children.values():
            child.start()

    def wait_ready(self, timeout_s: float, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Returns when every process has said READY. Raises StartError."""
        deadline_s = time.monotonic() + timeout_s
        while not is_stopping():
            waiting = [child for child in self.children.values() if not child.ready.is_set()]
            if not waiting:
                return
            for child in waiting:
                if not child.is_running():
                    raise StartError(_obituary(child))
            if time.monotonic() > deadline_s:
                names = ", ".join(child.spec.name for child in waiting)
                raise StartError(f"not ready after {timeout_s:.0f} s: {names}")
            waiting[0].ready.wait(POLL_S)

    def keep_running(self, stop: threading.Event) -> None:
        """Starts what dies again, with growing delays, until `stop` is set."""
        keepers = [_Keeper(child, self._on_line) for child in self.children.values()]
        while not stop.wait(POLL_S):
            for keeper in keepers:
                keeper.look(time.monotonic())

    def stop(self, drain_s: float, is_urgent: Callable[[], bool] = lambda: False) -> list[str]:
        """Ends all, callers before callees. Returns the names of those that had to be killed."""
        killed: list[str] = []
        for service in DRAIN_ORDER:
            group = [child for child in self.children.values() if child.spec.service == service]
            for child in group:
                child.send(signal.SIGTERM)
                child.send(signal.SIGCONT)
            deadline_s = time.monotonic() + drain_s + KILL_S
            for child in group:
                while not child.wait(POLL_S) and not is_urgent() and time.monotonic() < deadline_s:
                    pass
                if child.is_running():
                    child.send(signal.SIGKILL)
                    child.wait(KILL_S)
                    killed.append(child.spec.name)
        return killed


class _Keeper:
    """Decides when one child is started again."""

    def __init__(self, child: Child, on_line: OnLine) -> None:
        self._child = child
        self._on_line = on_line
        self._backoff = Backoff(random.Random(), FIRST_RESTART_S, LONGEST_RESTART_S)
        self._ready_since_s: float | None = None
        self._restart_at_s: float | None = None

    def look(self, now_s: float) -> None:
        if self._child.is_running():
            self._note_health(now_s)
        elif self._restart_at_s is None:
            delay_s = self._backoff.next_delay_s()
            self._restart_at_s = now_s + delay_s
            self._ready_since_s = None
            self._on_line("supervisor", f"{_obituary(self._child)}; starting it again in {delay_s:.1f} s")
        elif now_s >= self._restart_at_s:
            self._restart_at_s = None
            self._child.start()

    def _note_health(self, now_s: float) -> None:
        if not self._child.ready.is_set():
            self._ready_since_s = None
        elif self._ready_since_s is None:
            self._ready_since_s = now_s
        elif now_s - self._ready_since_s > STEADY_S:
            self._backoff.reset()


def _obituary(child: Child) -> str:
    child.wait(KILL_S)
    code = child.exit_code()
    assert code is not None, child.spec.name
    how = f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
    last = child.lines[-1] if child.lines else "it said nothing"
    return f"{child.spec.name} {how}: {last}"
