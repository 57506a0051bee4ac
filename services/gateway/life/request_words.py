"""What a request's life is told and what it asks for: facts in, commands out. No transport, no protobuf."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from services.contract.errors import MeshError
from services.gateway.text.output_text import Finish


class PlaceRefusal(Enum):
    """Why a scheduler will not place it."""

    QUEUE_FULL = "queue_full"
    QUEUE_WAIT = "queue_wait"
    DEADLINE = "deadline"
    NO_ENGINE = "no_engine"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    DRAINING = "draining"


class AdmitRefusal(Enum):
    """Why an engine did not take an admit."""

    WRONG_BOOT = "wrong_boot"
    DRAINING = "draining"
    NO_ROOM = "no_room"
    STALE = "stale"
    INVALID = "invalid"


class ReturnCause(Enum):
    """Why an engine gave a sequence back."""

    NO_STEP = "no_step"
    SUSPECT = "suspect"
    DRAINING = "draining"


class EndCause(Enum):
    """How a sequence ended in its engine."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    BAD_LOGITS = "bad_logits"
    DEADLINE = "deadline"


class Tier(IntEnum):
    """What is promised of the ids; the numbers of ExactnessTier. A larger one promises less."""

    UNSPECIFIED = 0
    BIT_IDENTICAL = 1
    SAME_TOKENS = 2
    CONTINUED = 3


@dataclass(frozen=True, slots=True)
class Ticket:
    """A scheduler's permission to send one admit."""

    scheduler_boot_id: str
    number: int
    engine_boot_id: str
    batch_id: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """An engine, with one ticket per sequence that was asked for."""

    engine_id: str
    address: str
    tickets: tuple[Ticket, ...]
    queued_us: int
    queue_reason: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine declared of itself in its hello."""

    engine_id: str
    boot_id: str
    fingerprint: str
    revision: str
    tier: Tier


class Promise(NamedTuple):
    """What `started` says of the engine that a stream begins or goes on in."""

    fingerprint: str
    tier: Tier
    revision: str
    """Empty where no engine is needed any more."""


@dataclass(frozen=True, slots=True)
class Counts:
    """An engine's account of one admission."""

    num_cached: int
    num_computed: int
    num_recomputed: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """Orders the attempts at one choice: the caller's first, the gateway's second."""

    client: int
    gateway: int


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """Log-probabilities of one output id: the chosen one first, then the likeliest."""

    ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Asks a scheduler for num_sequences tickets. Times are on the gateway's clock, seconds."""

    place_id: int
    num_sequences: int
    num_known_ids: int
    max_output_left: int
    queue_deadline_s: float | None
    num_crashes: int
    avoid_engine_ids: tuple[str, ...]
    preferred_engine_id: str
    preferred_fingerprint: str
    was_admitted: bool
    was_accepted: bool
    """Placed or queued by a scheduler once."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Takes an enqueue back, or the tickets that came of it."""

    place_id: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Sends one sequence to an engine. output_ids is the choice's own list: read it, never change it."""

    choice: int
    attempt: Attempt
    output_ids: list[int]
    placement: Placement
    ticket: Ticket
    is_suspect: bool
    """It may be what engines die of: it is to run alone until its first id."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends the admit of that attempt."""

    choice: int
    gateway_attempt: int


@dataclass(slots=True)
class EmitTokens:
    """New output ids of one choice, for the caller."""

    choice: int
    first_index: int
    ids: list[int]
    text: str
    logprobs: list[ChoiceLogprobs] | None


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one choice ended well."""

    choice: int
    finish: Finish
    num_tokens: int
    final_text: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The good end of a request."""

    choices: tuple[ChoiceEnd, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """The bad end of a request."""

    error: MeshError


Command = Enqueue | Withdraw | Admit | Cancel | EmitTokens | Complete | Fail


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What does not change in a request's life. Times are seconds; None is no limit."""

    client_attempt: int
    num_prompt_ids: int
    max_tokens: int
    known_output_ids: tuple[tuple[int, ...], ...]
    """Per choice, what the caller already has; empty tuples for a new stream."""
    was_admitted: bool = False
    """By another gateway, or an earlier attempt: its wait in queues is over."""
    known_fingerprint: str = ""
    """Of the engine that drew the known ids."""
    known_tier: Tier = Tier.UNSPECIFIED
    """What was promised of them."""
    deadline_s: float | None = None
    """On the gateway's clock."""
    max_queue_wait_s: float | None = None
    max_run_time_s: float | None = None
    preferred_engine_id: str = ""
    unserved_limit_s: float = 20.0
    """How long a choice may wait while no engine could take it."""


JitterFn = Callable[[], float]
"""Draws from [0, 1)."""
