"""A verdict for every metric, from paired rounds. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.load.bootstrap import Interval, Samples, Verdict, paired_ratio, pooled_ratio, verdict
from bench.load.distribution import MIN_SAMPLES
from bench.load.record import RequestRecord
from bench.load.run import Run
from bench.versions.rounds import Rounds


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of both."""

    metric: str
    baseline: float | None
    """None, as the following, where there are too few samples."""
    target: float | None
    interval: Interval | None
    """Of target / baseline."""
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class _Latency:
    name: str
    samples_ms: Callable[[RequestRecord], Samples]
    is_p95: bool


def compare(rounds: Rounds) -> list[Row]:
    """Throughput first."""
    rates = [
        _rate("output tokens/s", rounds, lambda run: run.summary.output_tokens_per_s),
        _rate("requests/s", rounds, lambda run: run.summary.requests_per_s),
    ]
    return [*rates, *(_latency(latency, rounds) for latency in _LATENCIES)]


def _rate(name: str, rounds: Rounds, value_of: Callable[[Run], float]) -> Row:
    baseline, target = ([value_of(run) for run in side] for side in (rounds.baseline, rounds.target))
    if not all(baseline) or not all(target):
        return Row(name, None, None, None, None)
    interval = paired_ratio(target, baseline)
    found = verdict(interval, is_more_better=True)
    return Row(name, float(np.mean(baseline)), float(np.mean(target)), interval, found)


def _latency(latency: _Latency, rounds: Rounds) -> Row:
    baseline, target = (_samples(latency, side) for side in (rounds.baseline, rounds.target))
    fewest = min(sum(map(len, side)) for side in (baseline, target))
    if fewest < (MIN_SAMPLES if latency.is_p95 else 1) or not all(map(len, (*baseline, *target))):
        return Row(latency.name, None, None, None, None)
    statistic = _p95 if latency.is_p95 else _mean
    interval = pooled_ratio(target, baseline, statistic)
    found = verdict(interval, is_more_better=False)
    below, above = (statistic(np.concatenate(side)) for side in (baseline, target))
    return Row(latency.name, below, above, interval, found)


def _samples(latency: _Latency, runs: Sequence[Run]) -> list[Samples]:
    return [
        np.concatenate(
            [np.empty(0), *(latency.samples_ms(record) for record in run.requests if record.is_measured)]
        )
        for run in runs
    ]


def _mean(samples: Samples) -> float:
    return float(samples.mean())


def _p95(samples: Samples) -> float:
    return float(np.percentile(samples, 95))


def _ttft_ms(record: RequestRecord) -> Samples:
    return np.array([record.ttft_s * 1000])


def _gaps_ms(record: RequestRecord) -> Samples:
    return record.gaps_s * 1000


def _elapsed_ms(record: RequestRecord) -> Samples:
    return np.array([record.elapsed_s * 1000])


_LATENCIES = tuple(
    _Latency(f"{name} {'P95' if is_p95 else 'mean'}, ms", samples_ms, is_p95)
    for name, samples_ms in (("TTFT", _ttft_ms), ("ITL", _gaps_ms), ("end to end", _elapsed_ms))
    for is_p95 in (False, True)
)
