"""How long steps take, and whether the one that runs is overdue. Pure."""

OVERDUE_AT_LEAST_US = 10_000_000
OVERDUE_FACTOR = 5
_WEIGHT = 0.2
"""Of the newest step in the means."""


class StepClock:
    """Means over recent steps."""

    def __init__(self) -> None:
        self.mean_us = 0.0
        self._mean_us_per_token = 0.0
        self._started: list[tuple[int, int]] = []

    def start(self, num_tokens: int, now_us: int) -> None:
        """A step was queued; steps end in their order."""
        self._started.append((now_us, num_tokens))

    def end(self, step_us: int, now_us: int) -> None:
        """The oldest step is over; the next one starts only now."""
        _, num_tokens = self._started.pop(0)
        self._started = [(now_us, tokens) for _, tokens in self._started]
        if step_us:
            self.mean_us = _mean(self.mean_us, step_us)
            self._mean_us_per_token = _mean(self._mean_us_per_token, step_us / max(1, num_tokens))

    def predicted_us(self, num_tokens: int) -> float:
        return max(self.mean_us, self._mean_us_per_token * num_tokens)

    def is_overdue(self, now_us: int) -> bool:
        """True if the step that runs takes longer than max(10 s, 5 x predicted)."""
        if not self._started:
            return False
        started_us, num_tokens = self._started[0]
        limit_us = max(OVERDUE_AT_LEAST_US, OVERDUE_FACTOR * self.predicted_us(num_tokens))
        return now_us - started_us > limit_us


def _mean(mean: float, value: float) -> float:
    return value if mean == 0 else mean + _WEIGHT * (value - mean)
