"""How often and when a broken request is tried again: a budget, and jittered exponential delays.

Pure but for the random source, which is passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pagemesh.errors import PagemeshError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of trying again."""

    max_attempts: int = 6
    """Attempts in a row without a new event."""
    first_delay_s: float = 0.1
    max_delay_s: float = 2.0
    budget: float = 20.0
    """Retries a client may have outstanding against its successes (gRFC A6)."""
    refill_per_success: float = 0.1


class RetryBudget:
    """Keeps a client from multiplying the load of an outage: retries spend, successes refill."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._left = policy.budget

    def spend(self) -> bool:
        """Takes one retry; False if too many were taken lately."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def refill(self) -> None:
        self._left = min(self._policy.budget, self._left + self._policy.refill_per_success)


class RetryState:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget, draw: Callable[[], float]) -> None:
        self._policy = policy
        self._budget = budget
        self._draw = draw
        self._num_failures = 0

    def progressed(self) -> None:
        """A new event came: failures before it do not count against what follows."""
        self._num_failures = 0

    def succeeded(self) -> None:
        self._budget.refill()

    def next_delay_s(self, error: PagemeshError, time_left_s: float) -> float | None:
        """Seconds to wait before the next attempt; None if there should be none."""
        self._num_failures += 1
        if self._num_failures >= self._policy.max_attempts or not self._budget.spend():
            return None
        ceiling = min(self._policy.max_delay_s, self._policy.first_delay_s * 2 ** (self._num_failures - 1))
        delay_s = max(ceiling * (0.5 + self._draw() / 2), error.retry_delay_s or 0.0)
        return delay_s if delay_s < time_left_s else None
