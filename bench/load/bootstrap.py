"""Ratios with bootstrap intervals, and what they say. Pure; a fixed seed makes them repeatable."""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95
MIN_ROUNDS = 5
"""Behind a verdict."""
LEAST_CHANGE = 0.02
"""A smaller change is called none, however sure."""
NUM_RESAMPLES = 10_000
NUM_POOLED_RESAMPLES = 1_000

Samples = npt.NDArray[np.float64]
Statistic = Callable[[Samples], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and the bounds that hold it with 95% confidence; NaN bounds for a single round."""

    ratio: float
    low: float
    high: float
    num_rounds: int


class Verdict(enum.StrEnum):
    """Of a target against its baseline."""

    BETTER = "better"
    SAME = "same"
    """The interval holds 1, or the difference is too small to matter."""
    WORSE = "worse"


def paired_ratio(target: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Geometric mean of the rounds' ratios target/baseline. Round i of both ran in turn: a slow minute of the
    machine is in both."""
    logs = np.log(np.asarray(target, np.float64) / np.asarray(baseline, np.float64))
    return _exp(_interval(logs, np.mean, is_vectorized=True))


def pooled_ratio(target: Sequence[Samples], baseline: Sequence[Samples], statistic: Statistic) -> Interval:
    """Ratio of a statistic of all samples. Whole rounds are resampled, in pairs: the samples of one round are
    alike, and taken as independent they would give intervals that are too narrow."""

    def log_ratio(rounds: npt.NDArray[np.int64]) -> float:
        above, below = (np.concatenate([side[i] for i in rounds]) for side in (target, baseline))
        return math.log(statistic(above) / statistic(below))

    assert len(target) == len(baseline), (len(target), len(baseline))
    return _exp(_interval(np.arange(len(target)), log_ratio, is_vectorized=False))


def _interval(rounds: npt.NDArray[Any], statistic: Callable[..., Any], *, is_vectorized: bool) -> Interval:
    """Percentiles, expanded for few rounds, since plain ones are too narrow (Hesterberg 2015, 3.3)."""
    whole, num_rounds = float(statistic(rounds)), len(rounds)
    if num_rounds < 2:
        return Interval(whole, math.nan, math.nan, num_rounds)
    found = stats.bootstrap(
        (rounds,),
        statistic,
        n_resamples=NUM_RESAMPLES if is_vectorized else NUM_POOLED_RESAMPLES,
        vectorized=is_vectorized,
        confidence_level=_expanded(num_rounds),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(whole, float(found.low), float(found.high), num_rounds)


def _exp(logs: Interval) -> Interval:
    return Interval(math.exp(logs.ratio), math.exp(logs.low), math.exp(logs.high), logs.num_rounds)


def verdict(interval: Interval, *, is_more_better: bool) -> Verdict | None:
    """None for too few rounds: two that agree by chance would look sure."""
    if interval.num_rounds < MIN_ROUNDS:
        return None
    if not (interval.low > 1 or interval.high < 1) or abs(interval.ratio - 1) < LEAST_CHANGE:
        return Verdict.SAME
    return Verdict.BETTER if (interval.ratio > 1) == is_more_better else Verdict.WORSE


def _expanded(num_rounds: int) -> float:
    """Confidence to ask of percentiles so that the interval is as wide as Student's t would make it."""
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, num_rounds - 1)
    return float(2 * stats.norm.cdf(math.sqrt(num_rounds / (num_rounds - 1)) * quantile) - 1)
