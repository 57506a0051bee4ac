"""Delays between tries: exponential, jittered, bounded. The random source is passed in."""

import random


class Backoff:
    """Each delay is drawn from the upper half of a doubling range: peers do not come back together."""

    def __init__(self, rng: random.Random, initial_s: float = 0.1, max_s: float = 2.0) -> None:
        assert 0 < initial_s <= max_s, (initial_s, max_s)
        self._rng = rng
        self._initial_s = initial_s
        self._max_s = max_s
        self._bound_s = initial_s

    def next_delay_s(self) -> float:
        """Seconds to wait before the next try."""
        delay_s = self._bound_s * self._rng.uniform(0.5, 1.0)
        self._bound_s = min(self._bound_s * 2, self._max_s)
        return delay_s

    def reset(self) -> None:
        """The last try worked."""
        self._bound_s = self._initial_s
