"""Tickets on their way: issued, then named by the engine, returned by the gateway, or given up.

Permission, not reservation: the engine's own room decides about a late admit.
"""

from collections.abc import Callable, Iterable

from services.scheduler.core.credit import IssuedTicket
from services.scheduler.core.engines import Engine
from services.scheduler.core.request import Entry
from services.scheduler.core.timers import Timers

GivenUp = Callable[[Engine, IssuedTicket, float], None]


class Tickets:
    """Numbers tickets and knows, per placed handle, which are not named yet."""

    def __init__(self, timers: Timers, wait_s: float, on_given_up: GivenUp) -> None:
        self._timers = timers
        self._wait_s = wait_s
        self._on_given_up = on_given_up
        self._last_number = 0
        self._placed: dict[tuple[int, int], tuple[Engine, set[int]]] = {}
        """(stream, handle) -> engine and unnamed tickets."""

    def is_placed(self, stream_id: int, handle: int) -> bool:
        """True while a ticket of the handle is on its way."""
        return (stream_id, handle) in self._placed

    def issue(self, engine: Engine, entry: Entry, now: float) -> tuple[int, ...]:
        """One ticket per sequence, each spending its part of the engine's credit."""
        request = entry.request
        block_size = engine.facts.block_size
        first_tokens = engine.tokens_of(request) - (request.num_sequences - 1) * block_size
        numbers = tuple(
            self._issue_one(engine, entry, first_tokens if index == 0 else block_size, now)
            for index in range(request.num_sequences)
        )
        self._placed[entry.stream_id, request.handle] = (engine, set(numbers))
        engine.last_ticket = numbers[-1]
        return numbers

    def release(self, engine: Engine, numbers: Iterable[int]) -> list[IssuedTicket]:
        """Ends tickets, named or not; those that ended before are skipped."""
        released = [ticket for number in numbers if (ticket := engine.credit.release(number)) is not None]
        for ticket in released:
            self._timers.cancel(ticket.timer)
            self._forget(ticket)
        return released

    def take_back(self, stream_id: int, handle: int) -> tuple[Engine, list[IssuedTicket]] | None:
        """Ends a placed handle's tickets: its gateway will send no admit."""
        placed = self._placed.get((stream_id, handle))
        if placed is None:
            return None
        engine, numbers = placed
        return engine, self.release(engine, tuple(numbers))

    def _issue_one(self, engine: Engine, entry: Entry, num_tokens: int, now: float) -> int:
        self._last_number += 1
        number, request = self._last_number, entry.request
        timer = self._timers.arm(now + self._wait_s, lambda when: self._give_up(engine, number, when))
        cost = request.cost / request.num_sequences
        ticket = IssuedTicket(number, num_tokens, entry.stream_id, request, cost, timer)
        engine.credit.issue(ticket)
        return number

    def _give_up(self, engine: Engine, number: int, now: float) -> None:
        for ticket in self.release(engine, (number,)):
            self._on_given_up(engine, ticket, now)

    def _forget(self, ticket: IssuedTicket) -> None:
        key = (ticket.stream_id, ticket.request.handle)
        _, numbers = self._placed[key]
        numbers.discard(ticket.number)
        if not numbers:
            del self._placed[key]
