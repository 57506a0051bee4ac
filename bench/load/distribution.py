"""A measure's distribution, with no percentile that its samples cannot carry. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_SAMPLES = 100
"""Behind a P50 or P95."""
MIN_SAMPLES_P99 = 1000


@dataclass(frozen=True, slots=True)
class Distribution:
    """None stands where there are too few samples."""

    num_samples: int
    mean: float | None
    std: float | None
    """Of the population."""
    p50: float | None
    p95: float | None
    p99: float | None
    largest: float | None


def distribution(samples: Sequence[float] | npt.NDArray[np.float64]) -> Distribution:
    """Percentiles interpolate linearly, as numpy's do by default."""
    values = np.asarray(samples, np.float64)
    if not len(values):
        return Distribution(0, None, None, None, None, None, None)
    return Distribution(
        len(values),
        float(values.mean()),
        float(values.std()),
        _percentile(values, 50, MIN_SAMPLES),
        _percentile(values, 95, MIN_SAMPLES),
        _percentile(values, 99, MIN_SAMPLES_P99),
        float(values.max()),
    )


def _percentile(values: npt.NDArray[np.float64], percent: float, min_samples: int) -> float | None:
    return float(np.percentile(values, percent)) if len(values) >= min_samples else None
