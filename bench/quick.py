"""`make bench-quick`: tokens per second and time to first token at 1 and 16 streams, within 45 s.

Starts a mesh of its own. The last line is one JSON object. Means, since so short a run has too few requests
for percentiles of the time to first token; docs/benchmark.md says how to measure properly.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from bench.load.environment import environment
from bench.load.local_mesh import MeshStartError, local_mesh
from bench.load.run import Run, measure
from bench.load.spec import ClosedLoop, LoadSpec
from bench.load.summary import Summary
from bench.load.table import print_table


@dataclass(frozen=True, slots=True)
class Stage:
    """One run."""

    num_streams: int
    num_warmup: int
    duration_s: float


STAGES = (Stage(1, 2, 12.0), Stage(16, 16, 16.0))


def main() -> None:
    try:
        with local_mesh() as mesh:
            runs = [_measure(mesh.target, stage, seed) for seed, stage in enumerate(STAGES)]
            log = list(mesh.lines)
    except MeshStartError as error:
        sys.exit(str(error))
    print_table(runs, Console(stderr=True))
    print(json.dumps({"commit": environment().commit, **figures(runs)}))
    if any(run.summary.num_failed for run in runs):
        sys.exit("\n".join(["requests failed; the mesh's last lines:", *log]))


def figures(runs: list[Run]) -> dict[str, dict[str, float | None]]:
    """By figure, then by streams."""
    summaries = {str(stage.num_streams): run.summary for stage, run in zip(STAGES, runs, strict=True)}
    figure_of: dict[str, Callable[[Summary], float | None]] = {
        "tokens_per_s": lambda summary: summary.output_tokens_per_s,
        "ttft_ms": lambda summary: summary.ttft_ms.mean,
        "itl_ms": lambda summary: summary.itl_ms.mean,
        "num_requests": lambda summary: summary.num_requests,
    }
    return {
        name: {streams: _rounded(figure(summary)) for streams, summary in summaries.items()}
        for name, figure in figure_of.items()
    }


def _measure(target: str, stage: Stage, seed: int) -> Run:
    spec = LoadSpec(
        target=target,
        load=ClosedLoop(stage.num_streams),
        duration_s=stage.duration_s,
        num_warmup=stage.num_warmup,
        seed=seed,
        label="pagemesh",
    )
    return measure(spec)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


if __name__ == "__main__":
    main()
