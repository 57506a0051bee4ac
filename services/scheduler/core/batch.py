"""Dispatch batches: what one event placed on one engine shares a batch id, within limits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.scheduler.core.commands import Placed, TicketFacts
from services.scheduler.core.engines import EngineFacts
from services.scheduler.core.request import QueueReason, Request


@dataclass(frozen=True, slots=True)
class Placement:
    """A request that was given an engine in this event; its credit is spent."""

    stream_id: int
    request: Request
    engine: EngineFacts
    ticket_numbers: tuple[int, ...]
    queued_s: float
    reason: QueueReason


class Batcher:
    """Collects the placements of one event and hands out batch ids."""

    def __init__(self, max_batch_size: int, max_batch_tokens: int) -> None:
        self._max_size = max_batch_size
        self._max_tokens = max_batch_tokens
        self._pending: dict[str, list[Placement]] = {}
        self._last_batch_id = 0

    def add(self, placement: Placement) -> None:
        """Adds to the engine's batch of this event."""
        self._pending.setdefault(placement.engine.boot_id, []).append(placement)

    def flush(self) -> Iterator[Placed]:
        """Ends the event: every placement with its tickets."""
        pending, self._pending = self._pending, {}
        for placements in pending.values():
            for batch in self._split(placements):
                yield from self._ticketed(batch)

    def _split(self, placements: Iterable[Placement]) -> Iterator[list[Placement]]:
        batch: list[Placement] = []
        size = tokens = 0
        for placement in placements:
            request = placement.request
            size += request.num_sequences
            tokens += request.num_prompt_tokens
            if batch and (size > self._max_size or tokens > self._max_tokens):
                yield batch
                batch, size, tokens = [], request.num_sequences, request.num_prompt_tokens
            batch.append(placement)
        yield batch

    def _ticketed(self, batch: list[Placement]) -> Iterator[Placed]:
        self._last_batch_id += 1
        size = sum(len(placement.ticket_numbers) for placement in batch)
        for each in batch:
            boot_id = each.engine.boot_id
            tickets = tuple(
                TicketFacts(number, boot_id, self._last_batch_id, size) for number in each.ticket_numbers
            )
            yield Placed(each.stream_id, each.request, each.engine, tickets, each.queued_s, each.reason)
