"""How much more each class may bring, and how schedulers share it."""

from collections.abc import Mapping
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


def divide(room: int, num_parts: int) -> list[int]:
    """Equal parts, the first ones one larger; together exactly the room."""
    part, rest = divmod(room, num_parts)
    return [part + (index < rest) for index in range(num_parts)]


class Turn:
    """Who has all the room of a class, where work waits: a share may never do for what needs a whole engine.

    Among several it passes on in proportion to their work; each has it at last.
    """

    def __init__(self) -> None:
        self._holder: int | None = None
        self._credits: dict[int, int] = {}

    def holder(self, work: Mapping[int, int]) -> int | None:
        """The same one while its work waits; None where nothing does. `work` is by scheduler, above 0."""
        if self._holder not in work:
            self.pass_on(work)
        return self._holder

    def pass_on(self, work: Mapping[int, int]) -> None:
        """Smooth weighted round robin."""
        self._credits = {number: self._credits.get(number, 0) + amount for number, amount in work.items()}
        self._holder = max(self._credits, key=lambda number: self._credits[number], default=None)
        if self._holder is not None:
            self._credits[self._holder] -= sum(work.values())
