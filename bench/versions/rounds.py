"""Measures both versions round after round: one mesh at a time, each started anew, in alternating order.

The load tool is this checkout's for both, so that only the mesh differs. Installed packages are the same.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.load.environment import commit_of
from bench.load.local_mesh import local_mesh
from bench.load.run import Run, measure
from bench.versions.checkout import checked_out, differing_pins
from bench.versions.config import BenchmarkConfig

OnRun = Callable[[int, Run], None]
"""Takes a round's number and one of its runs."""


class FailedRequestsError(Exception):
    """A version that fails requests is not measured. One line."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Runs of both by round."""

    config: BenchmarkConfig
    baseline_commit: str
    target_commit: str
    baseline: tuple[Run, ...]
    target: tuple[Run, ...]
    differing_pins: tuple[str, ...]
    """Packages that the two versions pin differently."""


def measure_versions(config: BenchmarkConfig, on_run: OnRun = lambda number, run: None) -> Rounds:
    """Raises UnknownVersionError, MeshStartError, FailedRequestsError."""
    with ExitStack() as stack:
        versions = (config.baseline_version, config.target_version)
        checkouts = [stack.enter_context(checked_out(version)) for version in versions]
        sides: tuple[list[Run], list[Run]] = ([], [])
        for number in range(config.num_rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                run = _measure(config, checkouts[side], versions[side], number)
                sides[side].append(run)
                on_run(number, run)
        return Rounds(
            config,
            commit_of(checkouts[0]),
            commit_of(checkouts[1]),
            tuple(sides[0]),
            tuple(sides[1]),
            tuple(differing_pins(*checkouts)),
        )


def _measure(config: BenchmarkConfig, checkout: Path, version: str, number: int) -> Run:
    with local_mesh(checkout, settings=config.settings, flags=config.flags) as mesh:
        run = measure(config.load(mesh.target, version, number))
        if run.summary.num_failed:
            raise FailedRequestsError(f"{version}: {run.summary.errors}; {' / '.join(mesh.lines)}")
        return run
