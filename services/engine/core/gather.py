"""Members of one dispatch batch start together: when all are in, or 5 ms after the first.

A missing member costs only that.
"""

from dataclasses import dataclass

from services.engine.core.admission import Ticket

GATHER_US = 5_000


@dataclass(slots=True)
class Gather:
    """One batch on its way in."""

    size: int
    deadline_us: int
    num_in: int = 0

    def is_open(self, now_us: int) -> bool:
        return self.num_in < self.size and now_us < self.deadline_us


class Gathers:
    """Open batches by (scheduler, batch)."""

    def __init__(self) -> None:
        self._gathers: dict[tuple[str, int], Gather] = {}

    def join(self, ticket: Ticket | None, now_us: int) -> None:
        """Counts a member in; a batch of one never waits."""
        if ticket is None or ticket.batch_size <= 1:
            return
        key = (ticket.scheduler_boot_id, ticket.batch_id)
        gather = self._gathers.get(key)
        if gather is None:
            gather = self._gathers[key] = Gather(ticket.batch_size, now_us + GATHER_US)
        gather.num_in += 1

    def is_waiting(self, ticket: Ticket | None, now_us: int) -> bool:
        """True while a member is to wait for the others."""
        if not self._gathers or ticket is None:
            return False
        gather = self._gathers.get((ticket.scheduler_boot_id, ticket.batch_id))
        return gather is not None and gather.is_open(now_us)

    def prune(self, now_us: int) -> int | None:
        """Forgets batches that are in or late; the time at which the next one gives up."""
        if not self._gathers:
            return None
        self._gathers = {key: gather for key, gather in self._gathers.items() if gather.is_open(now_us)}
        return min((gather.deadline_us for gather in self._gathers.values()), default=None)
