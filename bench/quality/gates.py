"""What an option must hold to be offered: written down, so that no change moves it quietly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.quality.result import OptionResult


@dataclass(frozen=True, slots=True)
class Gate:
    """Thresholds against fp32. A cell is one length group or one kind."""

    min_top1: float
    min_cell_top1: float
    max_kl: float
    """Mean, nats."""
    max_cell_kl: float
    min_divergence: int
    """Median index of the first greedy id that differs."""


GATES: Mapping[str, Gate] = MappingProxyType(
    {
        "torch float32": Gate(0.999, 0.998, 1e-8, 1e-7, 64),
        "torch bfloat16": Gate(0.975, 0.96, 0.002, 0.005, 16),
        "torch float16": Gate(0.99, 0.98, 1e-4, 1e-3, 32),
        "native bfloat16": Gate(0.985, 0.97, 5e-4, 1e-3, 16),
        "native int8": Gate(0.965, 0.95, 0.006, 0.012, 10),
        "native int4": Gate(0.985, 0.97, 5e-4, 1e-3, 16),
        "native bfloat16 + KV int8": Gate(0.98, 0.96, 0.002, 0.004, 12),
        "native int8 + KV int8": Gate(0.965, 0.945, 0.007, 0.014, 10),
    }
)


def missed(result: OptionResult, gate: Gate) -> Iterator[str]:
    """Says each threshold that the option does not hold."""
    total = result.total
    if total.top1 < gate.min_top1:
        yield f"top-1 {total.top1:.4f} is below {gate.min_top1}"
    if total.mean_kl > gate.max_kl:
        yield f"mean KL {total.mean_kl:.2g} is above {gate.max_kl:g}"
    latest = min(gate.min_divergence, result.num_greedy_tokens)
    if result.median_divergence < latest:
        yield f"median first divergence {result.median_divergence:g} is before {latest}"
    for cell, summary in result.cells.items():
        if summary.top1 < gate.min_cell_top1:
            yield f"{cell}: top-1 {summary.top1:.4f} is below {gate.min_cell_top1}"
        if summary.mean_kl > gate.max_cell_kl:
            yield f"{cell}: mean KL {summary.mean_kl:.2g} is above {gate.max_cell_kl:g}"
