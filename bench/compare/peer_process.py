"""One peer's process: a group of its own, its log kept, its readiness awaited, its whole group ended."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.compare.process_memory import group_pids
from services.supervisor import leash

POLL_S = 0.5
KILL_POLL_S = 0.02
TERM_WAIT_S = 20.0


class PeerError(Exception):
    """A peer did not start or did not answer. One line, with the path of its log."""


class PeerProcess:
    """Use as a context manager. Dies with this process, even if that is killed."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), "0", *self._command]
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                leashed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._signal_group(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TERM_WAIT_S)
        self._signal_group(signal.SIGKILL)  # what the leader left behind
        self._process.wait()
        self._await_group()

    def _check(self) -> None:
        """Raises PeerError if the process ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise PeerError(f"{self.name} ended with {self._process.returncode}; see {self._log_path}")

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> float:
        """Polls; gives the seconds it took. Raises PeerError."""
        begin_s = time.monotonic()
        while not is_ready():
            self._check()
            if time.monotonic() - begin_s > timeout_s:
                raise PeerError(f"{self.name} is not ready after {timeout_s:.0f} s; see {self._log_path}")
            time.sleep(POLL_S)
        return time.monotonic() - begin_s

    def _await_group(self) -> None:
        """What was killed takes the cores until it is gone; the next system must not start before."""
        deadline_s = time.monotonic() + TERM_WAIT_S
        while group_pids(self.pid) and time.monotonic() < deadline_s:
            time.sleep(KILL_POLL_S)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def answers_http(url: str) -> bool:
    """True if the address answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
