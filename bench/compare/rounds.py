"""The order of work: a short round that chooses each peer's best way, then rounds of the chosen, in turn.

Every system is started alone, loaded at each number of streams, and ended before the next one starts.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.compare.configuration import Configuration, row_of
from bench.compare.measurement import CHOOSING, Measurement, Place, measure_streams
from bench.compare.store import Store
from bench.load.spec import Inputs

START_GUESS_S: Mapping[str, float] = {"vLLM": 75.0, "OpenVINO GenAI": 12.0, "llama.cpp": 3.0, "pagemesh": 9.0}
WARM_SHARE = 0.7
"""Of a run's measured time, what warming up and the last requests' ends take, about."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    streams: tuple[int, ...] = (1, 4, 16, 32)
    num_rounds: int = 5
    duration_s: float = 15.0
    choosing_s: float = 5.0
    inputs: Inputs = field(default_factory=Inputs)


@dataclass(frozen=True, slots=True)
class Task:
    """One start of one configuration."""

    configuration: Configuration
    round: int
    streams: tuple[int, ...]


class Rounds:
    """Carries tasks out, skipping what the store has."""

    def __init__(self, plan: Plan, store: Store, logs: Path, report: Report) -> None:
        self._plan = plan
        self._store = store
        self._logs = logs
        self._report = report

    def run(self, tasks: Sequence[Task]) -> None:
        """Raises PeerError, RequestError."""
        left = [task for task in tasks if self._missing(task)]
        begin_s = time.monotonic()
        for index, task in enumerate(left):
            self._report(f"[{index + 1}/{len(left)}] {task.configuration.key}, {_round_name(task.round)}")
            self._run(task)
            passed_s = time.monotonic() - begin_s
            self._report(f"  about {passed_s / (index + 1) * (len(left) - index - 1) / 60:.0f} min left")

    def duration_s(self, number: int) -> float:
        return self._plan.choosing_s if number == CHOOSING else self._plan.duration_s

    def _missing(self, task: Task) -> list[int]:
        key = task.configuration.key
        return [count for count in task.streams if not self._store.has(Place(key, task.round, count))]

    def _run(self, task: Task) -> None:
        key, duration_s = task.configuration.key, self.duration_s(task.round)
        with task.configuration.open(self._logs) as started:
            for count in self._missing(task):
                place = Place(key, task.round, count)
                found = measure_streams(started, place, duration_s, self._plan.inputs)
                self._store.add(found)
                self._report(f"  {line(found)}")


def choosing_tasks(configurations: Sequence[Configuration], plan: Plan) -> list[Task]:
    """For rows that have a choice."""
    rows = [ways for ways in _by_row(configurations).values() if len(ways) > 1]
    return [Task(way, CHOOSING, plan.streams) for ways in rows for way in ways]


def main_tasks(chosen: Mapping[Configuration, Sequence[int]], plan: Plan) -> list[Task]:
    """Round by round; every other one backwards, so that nobody always runs behind the same neighbour."""
    tasks = []
    for number in range(1, plan.num_rounds + 1):
        order = list(chosen.items())[:: 1 if number % 2 else -1]
        tasks += [Task(configuration, number, tuple(streams)) for configuration, streams in order]
    return tasks


def choose(
    configurations: Sequence[Configuration], measurements: Iterable[Measurement], plan: Plan
) -> dict[Configuration, list[int]]:
    """For every row and number of streams the configuration with the most tokens per second."""
    rates = {
        (it.configuration, it.num_streams): it.tokens_per_s for it in measurements if it.round == CHOOSING
    }
    chosen: dict[Configuration, list[int]] = defaultdict(list)
    for ways in _by_row(configurations).values():
        for count in plan.streams:
            best = max(ways, key=lambda way: rates.get((way.key, count), 0.0))
            chosen[best].append(count)
    return dict(chosen)


def _by_row(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    rows: dict[str, list[Configuration]] = defaultdict(list)
    for configuration in configurations:
        rows[row_of(configuration.key)].append(configuration)
    return rows


def estimate_s(tasks: Iterable[Task], plan: Plan) -> float:
    """About how long tasks take."""
    total_s = 0.0
    for task in tasks:
        measured_s = plan.choosing_s if task.round == CHOOSING else plan.duration_s
        start_s = START_GUESS_S.get(task.configuration.system, 10.0)
        starts = len(task.streams) if task.configuration.system == "OpenVINO GenAI" else 1
        total_s += starts * start_s + len(task.streams) * (measured_s * (1 + WARM_SHARE) + 2)
    return total_s


def line(found: Measurement) -> str:
    ttft = sorted(found.ttft_ms)
    middle = f"{ttft[len(ttft) // 2]:.0f}" if ttft else "–"
    failed = f", {found.num_failed} FAILED" if found.num_failed else ""
    return (
        f"{found.num_streams:>3} streams: {found.tokens_per_s:8.1f} tok/s, TTFT {middle} ms, "
        f"ITL {found.itl_p50_ms:.1f} ms, rhythm {found.rhythm:.2f}{failed}"
    )


def _round_name(number: int) -> str:
    return "choosing" if number == CHOOSING else f"round {number}"
