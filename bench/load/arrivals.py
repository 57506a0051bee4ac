"""Intended send times of an open loop, in seconds after its start. Pure; a seed repeats them."""

from collections.abc import Iterator

import numpy as np

from bench.load.spec import Arrivals, OpenLoop


def intended_times(load: OpenLoop, seed: int) -> Iterator[float]:
    """Without end. The mean gap is 1/rate for every kind; the coefficient of variation of the gaps is 0 for
    uniform, 1 for Poisson and 1/sqrt(burstiness) for gamma."""
    generator = np.random.default_rng([seed, 1])
    mean_s = 1 / load.rate_per_s
    at_s = 0.0
    while True:
        yield at_s
        at_s += _gap_s(load, mean_s, generator)


def _gap_s(load: OpenLoop, mean_s: float, generator: np.random.Generator) -> float:
    match load.arrivals:
        case Arrivals.POISSON:
            return float(generator.exponential(mean_s))
        case Arrivals.GAMMA:
            return float(generator.gamma(load.burstiness, mean_s / load.burstiness))
        case Arrivals.UNIFORM:
            return mean_s
