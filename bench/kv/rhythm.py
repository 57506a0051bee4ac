"""S5: how even the times between tokens are under load, and what an even rhythm costs.

A prompt that shares a step with running streams lengthens that step. Smaller chunks spread it over more
steps: the rhythm is evener, first tokens come later. The bar: a standard deviation of a quarter of the mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.generated import table
from bench.load.run import measure
from bench.load.spec import ClosedLoop, LoadSpec
from tests.support.mesh import Mesh

NUM_STREAMS = 16
CHUNKS = (512, 128, 64, 32)
BAR = 0.25


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Of one size of chunks."""

    chunk_tokens: int
    mean_ms: float
    std_ms: float
    ttft_ms: float
    """Median."""
    tokens_per_s: float

    @property
    def share(self) -> float:
        return self.std_ms / self.mean_ms


def measure_rhythm(
    executor: str,
    model: Path | str,
    duration_s: float,
    report: Callable[[str], None],
    chunks: Sequence[int] = CHUNKS,
) -> list[Rhythm]:
    found = []
    for chunk_tokens in chunks:
        found.append(_measure(executor, model, chunk_tokens, duration_s))
        report(f"  chunks of {chunk_tokens}: {found[-1].mean_ms:.1f} ± {found[-1].std_ms:.1f} ms")
    return found


def _measure(executor: str, model: Path | str, chunk_tokens: int, duration_s: float) -> Rhythm:
    settings = {"engine": {"chunk_tokens": chunk_tokens}}
    with Mesh(engines=1, executor=executor, model=model, settings=settings) as mesh:
        spec = LoadSpec(
            target=f"grpc://{mesh.gateways[0]}",
            load=ClosedLoop(NUM_STREAMS),
            duration_s=duration_s,
            num_warmup=2 * NUM_STREAMS,
        )
        run = measure(spec)
    itl = run.summary.itl_ms
    assert itl.mean is not None and itl.std is not None, run.summary.errors
    ttfts_ms = [1000 * it.ttft_s for it in run.requests if it.is_measured and not it.error]
    return Rhythm(
        chunk_tokens, itl.mean, itl.std, float(np.median(ttfts_ms)), run.summary.output_tokens_per_s
    )


def lines(rows: Sequence[Rhythm]) -> list[str]:
    head = (
        "ids of known text in a step at most",
        "between tokens, ms",
        "std / mean",
        f"≤ {BAR}",
        "TTFT P50 ms",
        "tok/s",
    )
    return table(
        head,
        [
            (
                str(row.chunk_tokens),
                f"{row.mean_ms:.1f} ± {row.std_ms:.1f}",
                f"{row.share:.2f}",
                "met" if row.share <= BAR else "**missed**",
                f"{row.ttft_ms:.0f}",
                f"{row.tokens_per_s:.0f}",
            )
            for row in rows
        ],
    )
