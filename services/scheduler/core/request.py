"""What waits: one request for a place, as the placement core sees it.

It knows lengths, classes and names, never text or ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from services.contract.priority import Priority

if TYPE_CHECKING:
    from services.scheduler.core.engines import Engine
    from services.scheduler.core.timers import Timer

CLASSES = tuple(Priority)
"""In order. Iterating over the enum itself costs ten times as much, at every decision."""

BUCKET_TOKENS = 256
"""Width of a length bucket, ids."""


class Refusal(IntEnum):
    """Why nothing will be placed; the numbers of scheduler.proto's PlaceRefusal."""

    QUEUE_FULL = 1
    QUEUE_WAIT = 2
    DEADLINE = 3
    NO_ENGINE = 4
    TOO_LARGE = 5
    INVALID = 6
    DRAINING = 7


class QueueReason(StrEnum):
    """Why a request waited."""

    NONE = "none"
    NO_ROOM = "no_room"
    NO_ENGINE = "no_engine"


@dataclass(frozen=True, slots=True)
class Request:
    """All choices of one request, or one choice that has to go on."""

    handle: int
    model: str
    tenant_key: bytes
    priority: Priority
    num_prompt_tokens: int
    """Known ids: prompt and output so far."""
    max_output_tokens: int = 0
    """Output ids still to come at most."""
    num_sequences: int = 1
    request_id: str = ""
    age_s: float = 0.0
    """Since its arrival at the gateway."""
    time_left_s: float | None = None
    queue_time_left_s: float | None = None
    num_crashes: int = 0
    avoid_engine_ids: frozenset[str] = frozenset()
    preferred_engine_id: str = ""
    preferred_fingerprint: str = ""
    was_admitted: bool = False
    was_accepted: bool = False
    """By any scheduler: it is never refused for a full queue."""
    traceparent: str = ""

    @property
    def num_total_tokens(self) -> int:
        """Ids of one sequence when it is done."""
        return self.num_prompt_tokens + self.max_output_tokens

    @property
    def cost(self) -> int:
        """Virtual tokens its tenant is charged: the most it may use. What was admitted before has paid."""
        if self.was_admitted:
            return 0
        return self.num_prompt_tokens + self.num_sequences * self.max_output_tokens

    @property
    def bucket(self) -> int:
        """Length bucket's upper edge, ids."""
        return -(-self.num_prompt_tokens // BUCKET_TOKENS) * BUCKET_TOKENS


class EntryState(IntEnum):
    """NEW -> WAITING <-> PARKED -> GONE; a request that is placed at once goes from NEW to GONE."""

    NEW = 0
    WAITING = 1
    """In its model's queue."""
    PARKED = 2
    """No engine that its gateway reaches could take it: it stands in nobody's way."""
    GONE = 3


@dataclass(slots=True, eq=False)
class Entry:
    """A request inside the scheduler, from its arrival to its one end."""

    request: Request
    stream_id: int
    number: int
    """Order of arrival here."""
    enqueued_at: float
    arrived_at: float
    """Arrival at the gateway on this process's clock: the age that counts."""
    avoid_until: float
    """From then on an engine to avoid is better than none."""
    state: EntryState = EntryState.NEW
    reason: QueueReason = QueueReason.NONE
    timers: list[Timer] = field(default_factory=list)
    home_timer: Timer | None = None
    hold: Engine | None = None
    """Engine whose room gathers for it."""
    line_number: int = 0
    """Its valid position in its tenant's line; 0 is none."""
    start_tag: float = 0.0
    """Its tenant's virtual time when it was taken."""
