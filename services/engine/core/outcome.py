"""What the running set tells the world: news of sequences per Run stream, tickets met per scheduler."""

from dataclasses import dataclass, field
from enum import IntEnum

from services.engine.step import DrawnLogprobs


class Refusal(IntEnum):
    """Why an admit was not taken; the numbers of RunRefusal."""

    WRONG_BOOT = 1
    DRAINING = 2
    NO_ROOM = 3
    STALE = 4
    INVALID = 5


class ReturnReason(IntEnum):
    """Why a sequence is given back; the numbers of ReturnReason."""

    NO_STEP = 1
    SUSPECT = 2
    DRAINING = 3


class EndReason(IntEnum):
    """How a sequence ended; the numbers of EndReason."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    BAD_LOGITS = 4
    DEADLINE = 5


class TicketFate(IntEnum):
    """What became of a ticket; the numbers of TicketOutcome."""

    ADMITTED = 1
    REFUSED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """The account of one sequence in this engine."""

    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    handle: int
    refusal: Refusal
    detail: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Said once, with the first token."""

    handle: int
    num_cached_tokens: int
    wait_us: int
    prefill_us: int


@dataclass(frozen=True, slots=True)
class NewIds:
    """Ids that one step drew for one sequence."""

    handle: int
    gateway_attempt: int
    first_output_index: int
    ids: tuple[int, ...]
    logprobs: tuple[DrawnLogprobs, ...] | None


@dataclass(frozen=True, slots=True)
class Returned:
    handle: int
    reason: ReturnReason
    counts: Counts


@dataclass(frozen=True, slots=True)
class Ended:
    handle: int
    reason: EndReason
    counts: Counts


@dataclass(slots=True)
class StreamNews:
    """News for one Run stream; parts apply in this order."""

    refused: list[Refused] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    new_ids: list[NewIds] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TicketMet:
    """One ticket's fate, for the scheduler that gave it."""

    scheduler_boot_id: str
    number: int
    fate: TicketFate


@dataclass(slots=True)
class Totals:
    """Counters that only grow; what the metrics show."""

    admitted: int = 0
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    ended: dict[EndReason, int] = field(default_factory=lambda: dict.fromkeys(EndReason, 0))
    returned: dict[ReturnReason, int] = field(default_factory=lambda: dict.fromkeys(ReturnReason, 0))
    dropped: int = 0
    """Sequences whose stream broke."""
    preemptions: int = 0
    tokens_computed: int = 0
    tokens_recomputed: int = 0
    tokens_cached: int = 0
    """Ids found in the prefix cache, resumption after preemption included."""
    tokens_drawn: int = 0
    tokens_discarded: int = 0
    """Drawn for a sequence that had ended (a late stop)."""
    steps_failed: int = 0
