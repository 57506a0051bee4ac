"""One child process: started on a leash, its lines read, its READY awaited, its signals sent."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from services.supervisor import leash
from services.supervisor.plan import ProcessSpec

ROOT = Path(__file__).resolve().parent.parent.parent
"""The checkout."""

MAX_LINES = 20_000

_READY = re.compile(r"(?:^|\s)READY \S+ \S+$")

OnLine = Callable[[str, str], None]
"""Takes a process name and one line of its log; called from the child's reader thread."""


class Child:
    """A process that may be started again and again under the same name."""

    def __init__(self, spec: ProcessSpec, on_line: OnLine, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.ready = threading.Event()
        """Set once the running process has said READY."""
        self.num_starts = 0
        self._on_line = on_line
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process. The calling thread must live as long as the child: the leash is tied to it."""
        assert not self.is_running(), self.spec.name
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(self.spec.niceness)]
        command = [*leashed, sys.executable, *self.spec.arguments]
        self.ready.clear()
        self.num_starts += 1
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_with_checkout({**os.environ, **self._environment}),
            start_new_session=True,  # a terminal's Ctrl-C is the supervisor's to pass on, in order
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if one ended it."""
        return None if self._process is None else self._process.poll()

    def send(self, signal_number: signal.Signals) -> None:
        """Sends a signal to the process, if it still runs."""
        if self._process is not None:
            self._process.send_signal(signal_number)

    def wait(self, timeout_s: float) -> bool:
        """True if the process ended in time; then its last line has been read."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._reader is not None:
            self._reader.join(timeout_s)
        return True

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.rstrip("\n")
            self.lines.append(line)
            if _READY.search(line):
                self.ready.set()
            self._on_line(self.spec.name, line)
        self.ready.clear()


def _with_checkout(environment: Mapping[str, str]) -> dict[str, str]:
    """Lets `python -m services.x` be found from any folder, and lines come as they are written."""
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
