"""What the placement core tells its process to do: the only way out of it."""

from dataclasses import dataclass

from services.contract.priority import Priority
from services.scheduler.core.engines import EngineFacts
from services.scheduler.core.fleet import ModelFacts
from services.scheduler.core.request import QueueReason, Refusal, Request


@dataclass(frozen=True, slots=True)
class TicketFacts:
    """Permission to send one admit to one engine process."""

    number: int
    engine_boot_id: str
    batch_id: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """The request's one end: an engine and one ticket per sequence."""

    stream_id: int
    request: Request
    engine: EngineFacts
    tickets: tuple[TicketFacts, ...]
    queued_s: float
    reason: QueueReason


@dataclass(frozen=True, slots=True)
class Refused:
    """The request's one end: no place."""

    stream_id: int
    request: Request
    refusal: Refusal
    queued_s: float
    reason: QueueReason
    retry_delay_s: float = 0.0
    """0 is no advice."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The request's one end: its gateway took it back, or its stream closed. Nobody waits for an answer."""

    stream_id: int
    request: Request
    queued_s: float
    reason: QueueReason


@dataclass(frozen=True, slots=True)
class News:
    """How a request stands that began to wait."""

    stream_id: int
    handle: int
    num_ahead: int


@dataclass(frozen=True, slots=True)
class ReportWaiting:
    """To all engines of the model: the whole state of its queue, (sequences, known ids) by class."""

    model: str
    waiting: dict[Priority, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """To all gateways: the whole state of the fleet's models."""

    models: tuple[ModelFacts, ...]


@dataclass(frozen=True, slots=True)
class TicketGivenUp:
    """For the account: the engine did not name a ticket in time."""

    engine_id: str
    number: int


Command = Placed | Refused | Withdrawn | News | ReportWaiting | ModelsChanged | TicketGivenUp
