"""One closed-loop run of one started system, reduced to what is kept of it."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from bench.compare.configuration import MODEL_NAME, Started
from bench.compare.process_memory import pss_mib
from bench.load.run import Run, measure
from bench.load.spec import ClosedLoop, Inputs, LoadSpec

OUTPUT_TOKENS = 64
CHOOSING = 0
"""Number of the short round that chooses each peer's best way; the others count from 1."""


class Place(NamedTuple):
    """Names a measurement."""

    configuration: str
    round: int
    num_streams: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one round, configuration and number of streams."""

    configuration: str
    round: int
    num_streams: int
    tokens_per_s: float
    ttft_ms: tuple[float, ...]
    """Of every measured request."""
    itl_p50_ms: float
    rhythm: float
    """Standard deviation of the times between token events over their mean."""
    num_failed: int
    tool_cpu_share: float
    start_s: float
    memory_mib: float
    """Of all of the system's processes, shared pages counted once; 0 where the load tool ended it."""

    @property
    def place(self) -> Place:
        return Place(self.configuration, self.round, self.num_streams)

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "ttft_ms": tuple(fields["ttft_ms"])})

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_spec(target: str, num_streams: int, duration_s: float, seed: int, inputs: Inputs) -> LoadSpec:
    """The same load for every system: completions of 64 tokens, greedy, to their end."""
    return LoadSpec(
        target=target,
        load=ClosedLoop(num_streams),
        inputs=inputs,
        duration_s=duration_s,
        num_warmup=max(4, num_streams * 3 // 2),
        max_tokens=OUTPUT_TOKENS,
        model=MODEL_NAME if target.startswith("http") else "",
        seed=seed,
    )


def measure_streams(started: Started, place: Place, duration_s: float, inputs: Inputs) -> Measurement:
    """Every round has prompts of its own, the same for all systems."""
    seed = 1000 * place.round + place.num_streams
    return _reduced(
        measure(load_spec(started.target, place.num_streams, duration_s, seed, inputs)), started, place
    )


def _reduced(run: Run, started: Started, place: Place) -> Measurement:
    good = [record for record in run.requests if record.is_measured and not record.error]
    gaps_ms = np.concatenate([np.empty(0), *(record.gaps_s for record in good)]) * 1000
    return Measurement(
        *place,
        tokens_per_s=run.summary.output_tokens_per_s,
        ttft_ms=tuple(round(record.ttft_s * 1000, 3) for record in good),
        itl_p50_ms=float(np.median(gaps_ms)) if len(gaps_ms) else 0.0,
        rhythm=run.summary.rhythm or 0.0,
        num_failed=run.summary.num_failed,
        tool_cpu_share=run.summary.own_cpu_share,
        start_s=started.start_s,
        memory_mib=round(pss_mib(started.pids()), 1),
    )
