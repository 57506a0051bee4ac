"""What a mesh must come back to after every case: nothing runs, waits or holds a block, nobody died."""

from tests.support.mesh import Mesh

GAUGES = {
    "gateway": ("running_requests", "waiting_requests"),
    "scheduler": ("waiting_sequences",),
    "engine": ("running_sequences", "waiting_sequences"),
    "tokenizer": (),
}
SPARE_TASKS = 4
"""For each engine a peer keeps so many tasks from the first request on: its stream to it is opened then."""
TROUBLE = ("Traceback (most recent call last)", "Task was destroyed", "was never retrieved")
NUM_LINES_SHOWN = 40
"""From a line of trouble on."""


class Baseline:
    """Taken before a case, checked after it."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._pids = {name: mesh.pid(name) for name in mesh.names}
        self._num_lines = {name: len(mesh.logs(name)) for name in mesh.names}
        self._num_tasks = {name: self._tasks(name) for name in mesh.names}
        self._spare_tasks = SPARE_TASKS * sum(name.startswith("engine") for name in mesh.names)

    def check(self, timeout_s: float = 5.0) -> None:
        """Waits until the mesh is idle; raises AssertionError with what still holds something."""
        try:
            self._mesh.wait_until(lambda: not self.held(), timeout_s)
        except AssertionError as error:
            error.add_note(f"not idle after {timeout_s} s: {self.held()}")
            raise
        assert {name: self._mesh.pid(name) for name in self._mesh.names} == self._pids
        assert all(self._mesh.is_running(name) for name in self._mesh.names)
        trouble = self.trouble()
        assert not trouble, "\n".join(trouble)

    def held(self) -> dict[str, float]:
        """Everything that is not at rest."""
        found = {}
        for name in self._mesh.names:
            service, _, _ = name.partition("-")
            metrics = self._mesh.metrics(name)
            for gauge in GAUGES[service]:
                found[f"{name} {gauge}"] = metrics.total(f"pagemesh_{service}_{gauge}")
            if service == "engine":
                found[f"{name} blocks"] = metrics.value("pagemesh_engine_kv_blocks", state="used")
            if service == "gateway":
                started = metrics.total("pagemesh_gateway_started_total")
                ended = metrics.total("pagemesh_gateway_requests_total")
                found[f"{name} requests without an end"] = started - ended
            more_tasks = self._tasks(name) - self._num_tasks[name]
            found[f"{name} more tasks"] = max(0.0, more_tasks - self._spare_tasks)
        return {name: value for name, value in found.items() if value}

    def _tasks(self, name: str) -> float:
        return self._mesh.metrics(name).value("pagemesh_process_tasks")

    def trouble(self) -> list[str]:
        """What no request may cause: lines of a log, each with those that follow it."""
        found = []
        for name, seen in self._num_lines.items():
            lines = self._mesh.logs(name)[seen:]
            for number, line in enumerate(lines):
                if any(word in line for word in TROUBLE):
                    found += [f"{name}: {text}" for text in lines[number : number + NUM_LINES_SHOWN]]
        return found
