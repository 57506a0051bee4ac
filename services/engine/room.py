"""How much more each class may bring, and how schedulers share it."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.contract.priority import Priority
from services.engine.core.running_set import RunningSet


@dataclass(frozen=True, slots=True)
class ClassRoom:
    """Absolute room of one class."""

    priority: Priority
    num_sequences: int
    num_tokens: int


def room_of(running_set: RunningSet) -> list[ClassRoom]:
    """Slots that lower classes hold are room for higher ones; blocks are not."""
    if running_set.is_draining:
        return [ClassRoom(priority, 0, 0) for priority in Priority]
    num_tokens = running_set.num_room_blocks * running_set.limits.block_size
    return [ClassRoom(priority, running_set.roster.free_slots(priority), num_tokens) for priority in Priority]


def weights_of(num_waiting: Sequence[int]) -> list[int]:
    """An idle scheduler has no share next to one whose work waits: a request for all slots would wait for ever.

    Where nothing waits, each may place its next request at once.
    """
    return list(num_waiting) if any(num_waiting) else [1] * len(num_waiting)


def divide(room: int, weights: Sequence[int]) -> list[int]:
    """Shares in proportion to the weights; together exactly the room. Not all weights are 0."""
    total = sum(weights)
    shares = [room * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: (-(room * weights[index] % total), index))
    for index in by_remainder[: room - sum(shares)]:
        shares[index] += 1
    return shares
