"""What schedulers say, in the words of a request's life. Knows no streams and no requests."""

from dataclasses import dataclass

from pagemesh.v1 import scheduler_pb2
from services.gateway.life.request_words import Placement, PlaceRefusal, Ticket

_REFUSALS = {
    scheduler_pb2.PLACE_REFUSAL_QUEUE_FULL: PlaceRefusal.QUEUE_FULL,
    scheduler_pb2.PLACE_REFUSAL_QUEUE_WAIT: PlaceRefusal.QUEUE_WAIT,
    scheduler_pb2.PLACE_REFUSAL_DEADLINE: PlaceRefusal.DEADLINE,
    scheduler_pb2.PLACE_REFUSAL_NO_ENGINE: PlaceRefusal.NO_ENGINE,
    scheduler_pb2.PLACE_REFUSAL_TOO_LARGE: PlaceRefusal.TOO_LARGE,
    scheduler_pb2.PLACE_REFUSAL_DRAINING: PlaceRefusal.DRAINING,
}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the fleet offers for one model."""

    revision: str
    num_engines: int
    max_model_len: int
    max_pool_tokens: int
    max_sequences: int
    vocab_size: int
    block_size: int


def place_refusal(refused: scheduler_pb2.Refused) -> PlaceRefusal:
    """Why nothing will be placed."""
    return _REFUSALS.get(refused.refusal, PlaceRefusal.INVALID)


def model_limits(state: scheduler_pb2.ModelState) -> ModelLimits:
    """The fleet's offer for a model."""
    return ModelLimits(
        revision=state.revision,
        num_engines=state.num_engines,
        max_model_len=state.max_model_len,
        max_pool_tokens=state.max_pool_tokens,
        max_sequences=state.max_sequences,
        vocab_size=state.vocab_size,
        block_size=state.block_size,
    )


def placement_of(placed: scheduler_pb2.Placed) -> Placement:
    """An engine with its tickets."""
    tickets = tuple(
        Ticket(
            scheduler_boot_id=ticket.scheduler_boot_id,
            number=ticket.number,
            engine_boot_id=ticket.engine_boot_id,
            batch_id=ticket.batch_id,
            batch_size=ticket.batch_size,
        )
        for ticket in placed.tickets
    )
    return Placement(placed.engine_id, placed.address, tickets, placed.queued_us, placed.queue_reason)
