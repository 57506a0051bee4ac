"""A mesh on this machine for a measurement: `pagemesh up` of any checkout, on free ports, while it lasts."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagemesh import Client, PagemeshError, RawText
from services.supervisor.plan import METRICS_OFFSET, OFFSETS
from services.supervisor.ports import free_ports, is_free

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0
STOP_S = 20.0
_READY = "the mesh is ready"
_KEPT_LINES = 20
_MAIN = "from pagemesh.cli import main; main()"


class MeshStartError(Exception):
    """The mesh did not start, or does not answer. Its last lines."""


@dataclass(frozen=True, slots=True)
class LocalMesh:
    """A mesh that runs."""

    target: str
    """Of its gateway."""
    lines: deque[str]
    """The end of its log."""


@contextmanager
def local_mesh(
    checkout: Path = ROOT, *, settings: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[LocalMesh]:
    """One engine with all cores; every setting has its default but for `settings` (environment variables such
    as PAGEMESH_ENGINE_DTYPE) and `flags` of `pagemesh up`. Raises MeshStartError."""
    port = _base_port()
    command = [sys.executable, "-c", _MAIN, "up", "--engines=1", f"--base-port={port}", *flags]
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **(settings or {}), "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        _await_ready(process, lines)
        _await_answer(f"127.0.0.1:{port}")
        yield LocalMesh(f"grpc://127.0.0.1:{port}", lines)
    finally:
        _stop(process)


def _await_ready(process: "subprocess.Popen[str]", lines: deque[str]) -> None:
    """Reads the log up to the banner; then a thread goes on, so that the pipe never fills."""
    assert process.stderr is not None
    is_ready = threading.Event()

    def read() -> None:
        for line in process.stderr or ():
            lines.append(line.rstrip())
            if _READY in line:
                is_ready.set()

    threading.Thread(target=read, daemon=True).start()
    deadline_s = time.monotonic() + START_S
    while not is_ready.wait(0.1):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise MeshStartError("the mesh did not start:\n" + "\n".join(lines))


def _await_answer(gateway: str) -> None:
    """Ready processes have yet to meet: the first answer says that they have."""
    deadline_s = time.monotonic() + START_S
    with Client(gateway) as client:
        while True:
            try:
                client.collect(RawText("Hello"), max_tokens=1, timeout_s=START_S)
                return
            except PagemeshError as error:
                if not error.is_retryable or time.monotonic() > deadline_s:
                    raise MeshStartError(f"the mesh does not answer: {error}") from error
                time.sleep(0.1)


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _base_port() -> int:
    """One from which on all ports of a mesh are free."""
    steps = [offset + more for offset in OFFSETS.values() for more in (0, METRICS_OFFSET)]
    while True:
        (port,) = free_ports(1)
        if all(is_free(port + step) for step in steps):
            return port
