"""What one engine process may still be sent: its absolute room less the tickets it has not named yet.

A ticket spends the credit of its class and of every lower one, since slots that lower classes
hold are room for higher ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.contract.priority import Priority
from services.scheduler.core.request import CLASSES, Request
from services.scheduler.core.timers import Timer


@dataclass(frozen=True, slots=True)
class Room:
    """What one class may still bring, by the engine's last report."""

    num_sequences: int
    num_tokens: int


NO_ROOM = Room(0, 0)


@dataclass(frozen=True, slots=True)
class IssuedTicket:
    """A ticket on its way: given to a gateway, not yet named by the engine."""

    number: int
    num_tokens: int
    stream_id: int
    request: Request
    cost: float
    """Its part of what the tenant was charged."""
    timer: Timer
    """Gives it up."""


class Credit:
    """Room and unnamed tickets of one engine process."""

    def __init__(self) -> None:
        size = CLASSES[-1] + 1
        self._room_sequences = [0] * size
        self._room_tokens = [0] * size
        self._spent_sequences = [0] * size
        self._spent_tokens = [0] * size
        self._tickets: dict[int, IssuedTicket] = {}
        self.num_kept = 0
        """Slots held by lower classes that are no room for higher ones."""

    @property
    def num_unnamed(self) -> int:
        """Tickets given and not yet named."""
        return len(self._tickets)

    def set_room(self, room: Mapping[Priority, Room]) -> None:
        """Takes a report's room; a class that is missing has none."""
        for priority in CLASSES:
            own = room.get(priority, NO_ROOM)
            self._room_sequences[priority] = own.num_sequences
            self._room_tokens[priority] = own.num_tokens

    def usable_sequences(self, priority: Priority) -> int:
        """Sequences of this class that may be sent now."""
        left = self._room_sequences[priority] - self._spent_sequences[priority]
        if self.num_kept:
            left -= min(self.num_kept, max(self._held_below(priority), 0))
        return left if left > 0 else 0

    def usable_tokens(self, priority: Priority) -> int:
        """Known ids of this class that may be sent now."""
        left = self._room_tokens[priority] - self._spent_tokens[priority]
        return left if left > 0 else 0

    def open_classes(self, is_idle: bool) -> tuple[bool, ...]:
        """By class in order: is there credit for a sequence, and for an id unless the engine is idle?"""
        return tuple(
            [
                self.usable_sequences(each) > 0 and (is_idle or self.usable_tokens(each) > 0)
                for each in CLASSES
            ]
        )

    def issue(self, ticket: IssuedTicket) -> None:
        """Spends credit until the ticket is released."""
        assert ticket.number not in self._tickets, ticket
        self._tickets[ticket.number] = ticket
        self._spend(ticket, 1)

    def release(self, number: int) -> IssuedTicket | None:
        """Ends a ticket that was named, given up or given back; None if it had ended before."""
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            self._spend(ticket, -1)
        return ticket

    def _held_below(self, priority: Priority) -> int:
        """Slots that lower classes hold or are about to."""
        lowest = Priority.BATCH
        held = self._room_sequences[priority] - self._room_sequences[lowest]
        return held + self._spent_sequences[lowest] - self._spent_sequences[priority]

    def _spend(self, ticket: IssuedTicket, sign: int) -> None:
        num_tokens = sign * ticket.num_tokens
        for priority in range(ticket.request.priority, len(self._spent_tokens)):
            self._spent_sequences[priority] += sign
            self._spent_tokens[priority] += num_tokens
