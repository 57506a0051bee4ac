"""A mesh of real processes for a test, on ports of its own, with every process in the test's hands.

with Mesh(engines=2, script={"scripts": [...]}) as mesh:
    client = Client(mesh.gateways)
    mesh.kill("engine-0")
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pagemesh import AsyncClient, Client
from pagemesh.health import queue_state
from services.supervisor.child import Child
from services.supervisor.cores import thread_share
from services.supervisor.plan import MeshShape, Overrides, plan
from services.supervisor.ports import free_ports
from services.supervisor.supervisor import Supervisor
from tests.support.metrics import Metrics, scrape

START_TIMEOUT_S = 120.0
DRAIN_S = 5.0
KILL_WAIT_S = 10.0


class Mesh:
    """Use as a context manager, plain or async. Nothing is started again by itself.

    Processes are called tokenizer-0, scheduler-0, engine-0, engine-1, gateway-0, ...
    """

    def __init__(
        self,
        *,
        engines: int = 2,
        gateways: int = 1,
        schedulers: int = 1,
        tokenizers: int = 1,
        executor: str = "scripted",
        script: Mapping[str, object] | None = None,
        model: Path | str = "smollm2",
        settings: Overrides | None = None,
        environment: Mapping[str, str] | None = None,
        niceness: int = 0,
    ) -> None:
        """`settings` are by service name, process name or "*", and win over what the mesh sets itself.

        niceness is of all but the engines; tests share their cores with other tests, so it is 0 here.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="mesh-")
        self._script_path = Path(self._folder.name) / "script.json"
        self.write_script(script or {})
        own: dict[str, dict[str, object]] = {
            "*": {"drain_s": DRAIN_S},
            "tokenizer": {"model": model},
            "engine": {"model": model, "executor": executor, **thread_share(engines)},
        }
        if executor == "scripted":
            own["engine"]["script"] = self._script_path
        shape = MeshShape(engines, gateways, schedulers, tokenizers, _merged(own, settings or {}), niceness)
        num_processes = engines + gateways + schedulers + tokenizers
        self._supervisor = Supervisor(
            plan(shape, free_ports(2 * num_processes)),
            lambda name, line: None,
            {"OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def __enter__(self) -> Self:
        self._supervisor.start()
        try:
            self._wait_whole()
        except BaseException as error:
            self._end()
            error.add_note(self.all_logs())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is not None:
            error.add_note(self.all_logs())

    async def __aenter__(self) -> Self:
        # Children die with the thread that started them: they are started here and only awaited elsewhere.
        self._supervisor.start()
        try:
            await asyncio.to_thread(self._wait_whole)
        except BaseException as error:
            await asyncio.to_thread(self._end)
            error.add_note(self.all_logs())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def names(self) -> list[str]:
        return list(self._supervisor.children)

    @property
    def gateways(self) -> list[str]:
        """Addresses of the gateways."""
        return [child.spec.address for child in self._children("gateway")]

    def client(self, **arguments: object) -> Client:
        """A client of all gateways, in their order."""
        return Client(self.gateways, **arguments)  # type: ignore[arg-type]

    def async_client(self, **arguments: object) -> AsyncClient:
        return AsyncClient(self.gateways, **arguments)  # type: ignore[arg-type]

    def address(self, name: str) -> str:
        return self._child(name).spec.address

    def pid(self, name: str) -> int:
        pid = self._child(name).pid
        assert pid is not None, name
        return pid

    def is_running(self, name: str) -> bool:
        return self._child(name).is_running()

    def exit_code(self, name: str) -> int | None:
        return self._child(name).exit_code()

    def kill(self, name: str, signal_number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a process at once (or as the signal says) and waits for its end."""
        child = self._child(name)
        child.send(signal_number)
        assert child.wait(KILL_WAIT_S + DRAIN_S), f"{name} still runs after {signal_number.name}"

    def terminate(self, name: str) -> None:
        """Sends SIGTERM and does not wait."""
        self._child(name).send(signal.SIGTERM)

    def freeze(self, name: str) -> None:
        """Stops a process without its knowing (SIGSTOP)."""
        self._child(name).send(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._child(name).send(signal.SIGCONT)

    def restart(self, name: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Kills the process if it runs, starts it anew at the same address and waits for its READY.

        Call it from the test's own thread: the child dies with the thread that starts it.
        """
        self.start_again(name)
        self.wait_ready(name, timeout_s)

    def start_again(self, name: str) -> None:
        """Like `restart`, without waiting for READY."""
        child = self._child(name)
        if child.is_running():
            self.kill(name)
        child.start()

    def wait_ready(self, name: str, timeout_s: float = START_TIMEOUT_S) -> None:
        child = self._child(name)
        deadline_s = time.monotonic() + timeout_s
        while not child.ready.wait(0.05):
            assert child.is_running(), f"{name} ended: {self.logs(name)[-5:]}"
            assert time.monotonic() < deadline_s, f"{name} is not ready after {timeout_s} s"

    def metrics(self, name: str) -> Metrics:
        """The process's metrics now."""
        return scrape(self._child(name).spec.metrics_address)

    def logs(self, name: str) -> list[str]:
        """All lines of the process so far, earlier runs included."""
        return list(self._child(name).lines)

    def all_logs(self, num_lines: int = 40) -> str:
        """The last lines of every process, for a failure's report."""
        parts = []
        for name, child in self._supervisor.children.items():
            lines = list(child.lines)[-num_lines:]
            parts += [f"--- {name} (exit code {child.exit_code()})", *lines]
        return "\n".join(parts)

    def write_script(self, script: Mapping[str, object]) -> None:
        """Gives the scripted engines another script; they read it anew at their next admission."""
        defaults = {"vocab_size": 49_152, "max_model_len": 65_536, "row_invariant": True}
        draft = self._script_path.with_suffix(".draft")
        draft.write_text(json.dumps({**defaults, "scripts": [], **script}))
        os.replace(draft, self._script_path)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "") -> None:
        """Polls; raises AssertionError after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what or condition}"
            time.sleep(0.02)

    def _wait_whole(self) -> None:
        """Every process is ready, and every scheduler sees every engine."""
        self._supervisor.wait_ready(START_TIMEOUT_S)
        engines = {child.spec.name for child in self._children("engine")}
        for scheduler in self._children("scheduler"):
            self.wait_until(lambda address=scheduler.spec.address: live_engines(address) >= engines)  # type: ignore[misc]

    def _end(self) -> None:
        self._supervisor.stop(DRAIN_S)
        self._folder.cleanup()

    def _child(self, name: str) -> Child:
        return self._supervisor.children[name]

    def _children(self, service: str) -> list[Child]:
        return [child for child in self._supervisor.children.values() if child.spec.service == service]


def live_engines(scheduler: str) -> set[str]:
    """Names of the engines that a scheduler has a live Watch to."""
    return {engine.engine_id for engine in queue_state(scheduler, timeout_s=5).engines if engine.is_live}


def _merged(own: Overrides, given: Overrides) -> dict[str, dict[str, object]]:
    return {key: {**own.get(key, {}), **given.get(key, {})} for key in [*own, *given]}
