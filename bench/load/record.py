"""What is known of one request after the run. Pure: times in, times out."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.load.drivers.driver import Answer

Seconds = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Times = tuple[float, float, float]
"""Intended, sent, ended; seconds of the monotonic clock."""


def _no_times() -> Seconds:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """Latency counts from the intended time: a request that was kept back before it was sent has waited."""

    intended_s: float
    sent_s: float
    ended_s: float
    is_measured: bool
    """False for warm-up."""
    turn: int = 0
    """Of its conversation."""
    error: str = ""
    """Empty if it ended well."""
    token_times_s: Seconds = field(default_factory=_no_times)
    token_counts: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    server_ttft_s: float | None = None
    server_times_s: Seconds = field(default_factory=_no_times)

    @property
    def ttft_s(self) -> float:
        """From the intended time to the first token event."""
        return float(self.token_times_s[0]) - self.intended_s

    @property
    def elapsed_s(self) -> float:
        """From the intended time to the stream's end."""
        return self.ended_s - self.intended_s

    @property
    def gaps_s(self) -> Seconds:
        """Between token events."""
        return np.diff(self.token_times_s)

    @property
    def server_gaps_s(self) -> Seconds:
        return np.diff(self.server_times_s)

    @property
    def num_tokens(self) -> int:
        """The server's count, else the tool's."""
        return self.num_counted if self.num_output_tokens is None else self.num_output_tokens

    @property
    def num_counted(self) -> int:
        """Tokens in the events that arrived; where an event does not say, it is one."""
        return int(self.token_counts.sum())

    @property
    def s_per_token(self) -> float | None:
        """From the first token event to the last, per token after the first event's."""
        num_later = self.num_tokens - int(self.token_counts[0])
        if num_later < 1 or len(self.token_times_s) < 2:
            return None
        return float(self.token_times_s[-1] - self.token_times_s[0]) / num_later


def failed_record(error: str, times_s: Times, is_measured: bool, turn: int) -> RequestRecord:
    return RequestRecord(*times_s, is_measured, turn, error)


def record_of(answer: Answer, times_s: Times, is_measured: bool, turn: int) -> RequestRecord:
    ttft_ms, server_times_s = answer.server_ttft_ms, answer.server_times_s
    return RequestRecord(
        *times_s,
        is_measured,
        turn,
        error="" if answer.token_times_s else "no token arrived",
        token_times_s=np.asarray(answer.token_times_s, np.float64),
        token_counts=np.asarray(answer.token_counts, np.int64),
        num_prompt_tokens=answer.num_prompt_tokens,
        num_output_tokens=answer.num_output_tokens,
        num_cached_tokens=answer.num_cached_tokens,
        server_ttft_s=None if ttft_ms is None else ttft_ms / 1000,
        server_times_s=_no_times() if server_times_s is None else np.asarray(server_times_s, np.float64),
    )
