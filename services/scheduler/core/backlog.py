"""How much waits, how much may, how fast it drains; and from that, when a refused caller should try again."""

import math

from services.contract.priority import Priority
from services.scheduler.core.request import CLASSES, Request

TIME_CONSTANT_S = 10.0
MIN_DELAY_S = 0.1
MAX_DELAY_S = 60.0


class Rate:
    """Amount per second, exponentially forgotten."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._started_at: float | None = None
        self._updated_at = 0.0

    def add(self, amount: float, now: float) -> None:
        """Counts an amount at this moment."""
        if self._started_at is None:
            self._started_at = self._updated_at = now
        self._decay(now)
        self._weight += amount

    def per_second(self, now: float) -> float:
        """The rate; 0 before anything was counted. A young measurement is divided by its own age."""
        if self._started_at is None:
            return 0.0
        self._decay(now)
        age_s = max(now - self._started_at, 1.0)
        return self._weight / (TIME_CONSTANT_S * (1.0 - math.exp(-age_s / TIME_CONSTANT_S)))

    def _decay(self, now: float) -> None:
        if now == self._updated_at:
            return
        self._weight *= math.exp(-(now - self._updated_at) / TIME_CONSTANT_S)
        self._updated_at = now


class Backlog:
    """Waiting work of all models by class, bounded for each class by itself."""

    def __init__(self, max_sequences: int, max_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self._num_sequences = [0] * (CLASSES[-1] + 1)
        self._num_tokens = [0] * (CLASSES[-1] + 1)
        self._sequence_rate = Rate()
        self._token_rate = Rate()

    def waiting(self, priority: Priority) -> tuple[int, int]:
        """Sequences and known ids of a class."""
        return self._num_sequences[priority], self._num_tokens[priority]

    def is_full(self, request: Request) -> bool:
        """True if the request must be refused. What was accepted once never is."""
        num_sequences = self._num_sequences[request.priority] + request.num_sequences
        num_tokens = self._num_tokens[request.priority] + request.num_prompt_tokens
        is_over = num_sequences > self._max_sequences or num_tokens > self._max_tokens
        return is_over and not request.was_accepted

    def add(self, request: Request) -> None:
        """It waits."""
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """It does not wait any more."""
        self._count(request, -1)

    def note_placed(self, request: Request, now: float) -> None:
        """Measures the drain."""
        self._sequence_rate.add(request.num_sequences, now)
        self._token_rate.add(request.num_prompt_tokens, now)

    def retry_delay_s(self, priority: Priority, jitter: float, now: float) -> float:
        """Seconds until what is ahead has drained, times 0.5..1 by jitter (0..1) to part the callers."""
        ahead = [each for each in CLASSES if each <= priority]
        drained_s = max(
            _seconds(sum(self._num_sequences[each] for each in ahead), self._sequence_rate.per_second(now)),
            _seconds(sum(self._num_tokens[each] for each in ahead), self._token_rate.per_second(now)),
        )
        return min(max(drained_s, MIN_DELAY_S), MAX_DELAY_S) * (0.5 + 0.5 * jitter)

    def _count(self, request: Request, sign: int) -> None:
        self._num_sequences[request.priority] += sign * request.num_sequences
        self._num_tokens[request.priority] += sign * request.num_prompt_tokens


def _seconds(amount: float, per_second: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / per_second if per_second > 0 else MAX_DELAY_S
