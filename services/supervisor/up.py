"""`pagemesh up`: the mesh in the foreground until Ctrl-C."""

import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType

from services.contract.model_folder import ModelFolderError, resolve_model
from services.supervisor.console import Console, banner
from services.supervisor.cores import thread_share
from services.supervisor.plan import BASE_PORT, MeshShape, documented_ports, plan
from services.supervisor.supervisor import StartError, Supervisor

START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What a person may choose; everything else has its service's default."""

    engines: int = 2
    model: str = "smollm2"
    executor: str = "auto"
    drain_s: float = 30.0
    log_level: str = "info"
    otlp_endpoint: str = ""
    base_port: int = BASE_PORT


def up(options: UpOptions) -> int:
    """Runs until SIGTERM or SIGINT; a second one ends at once. Returns the exit code."""
    console = Console()
    signals = _Signals()
    try:
        folder = resolve_model(options.model, lambda line: console.write("supervisor", line))
    except ModelFolderError as error:
        console.write("supervisor", str(error))
        return 1
    shape = _shape(options, str(folder.resolve()))
    supervisor = Supervisor(plan(shape, documented_ports(shape, options.base_port)), console.write)
    code = _run(supervisor, console, signals)
    killed = supervisor.stop(options.drain_s, lambda: signals.count > 1)
    console.write("supervisor", f"stopped{'; killed ' + ', '.join(killed) if killed else ''}")
    return code


def _run(supervisor: Supervisor, console: Console, signals: "_Signals") -> int:
    begin_s = time.monotonic()
    supervisor.start()
    try:
        supervisor.wait_ready(START_TIMEOUT_S, signals.stop.is_set)
    except StartError as error:
        console.write("supervisor", str(error))
        return 1
    if not signals.stop.is_set():
        specs = [child.spec for child in supervisor.children.values()]
        for line in banner(specs, time.monotonic() - begin_s):
            console.write("supervisor", line)
    supervisor.keep_running(signals.stop)
    return 0


def _shape(options: UpOptions, model: str) -> MeshShape:
    return MeshShape(
        engines=options.engines,
        overrides={
            "*": {
                "drain_s": options.drain_s,
                "log_level": options.log_level,
                "otlp_endpoint": options.otlp_endpoint,
            },
            "tokenizer": {"model": model},
            "engine": {
                "model": model,
                "executor": options.executor,
                **thread_share(options.engines),
            },
        },
    )


class _Signals:
    """SIGTERM and SIGINT as an event and a count."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.count = 0
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.stop.set()
