"""What the load tool asks of a driver.

A driver takes arrivals as they come, with the time, and understands them only later: while a run is
measured, the tool leaves the cores to the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Arrival = tuple[float, object]
"""When (seconds of the monotonic clock), and what: only its driver knows the type."""


class RequestError(Exception):
    """A request failed. One short line; equal causes have equal lines, since they are counted."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    conversation: int
    text: str
    max_tokens: int
    history: tuple[str, ...] = ()
    """Earlier turns and answers of the conversation, in turn."""
    is_last: bool = True

    @property
    def is_whole(self) -> bool:
        """True if the conversation has only this turn."""
        return self.is_last and not self.history


@dataclass(frozen=True, slots=True)
class Answer:
    """What the arrivals of one request meant. Times are those of the arrivals, one per token event."""

    token_times_s: Sequence[float]
    token_counts: Sequence[int]
    """Tokens of each event: one, where the server does not say."""
    text: str
    num_prompt_tokens: int | None = None
    """As the server reports, as the following."""
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    server_ttft_ms: float | None = None
    server_times_s: Sequence[float] | None = None
    """When the server says it wrote each token event; its own clock."""


class Driver(Protocol):
    """One per process; `send` is called for many requests at a time."""

    async def open(self) -> None:
        """Raises RequestError if there is nobody."""
        ...

    async def close(self) -> None:
        """Comes last, whether `open` succeeded or not."""
        ...

    async def send(self, turn: Turn, arrivals: list[Arrival]) -> None:
        """Sends the request and appends what arrives, to the end. Raises RequestError."""
        ...

    def read(self, arrivals: Sequence[Arrival]) -> Answer:
        """Raises RequestError if the answer is not whole."""
        ...
