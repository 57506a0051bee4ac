"""Who is in the engine: running in the order of rank, or waiting for a slot or blocks. Knows no blocks."""

from bisect import insort

from services.contract.priority import Priority
from services.engine.core.sequence import Sequence, State


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank


class Roster:
    """Live sequences; both lists are sorted by rank, the first to be served first."""

    def __init__(self, max_sequences: int) -> None:
        self.max_sequences = max_sequences
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._live: dict[int, Sequence] = {}
        self._by_handle: dict[tuple[int, int], Sequence] = {}
        self._num_live = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def is_full(self) -> bool:
        return len(self.running) >= self.max_sequences

    def live(self) -> list[Sequence]:
        return list(self._live.values())

    def get(self, sequence_id: int) -> Sequence | None:
        return self._live.get(sequence_id)

    def by_handle(self, stream_id: int, handle: int) -> Sequence | None:
        return self._by_handle.get((stream_id, handle))

    def free_slots(self, priority: Priority) -> int:
        """Slots for a class; those that lower classes hold count as free."""
        held = sum(count for held_by, count in self._num_live.items() if held_by <= priority)
        return max(0, self.max_sequences - held)

    def num_running(self, priority: Priority) -> int:
        return sum(sequence.admission.priority == priority for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        admission = sequence.admission
        self._live[sequence.sequence_id] = sequence
        self._by_handle[admission.stream_id, admission.handle] = sequence
        self._num_live[admission.priority] += 1
        insort(self.waiting, sequence, key=_rank)

    def start(self, sequence: Sequence) -> None:
        """From waiting to running."""
        assert not self.is_full, len(self.running)
        self.waiting.remove(sequence)
        sequence.move_to(State.RUNNING)
        insort(self.running, sequence, key=_rank)

    def preempt(self, sequence: Sequence, now_us: int) -> None:
        """From running to waiting."""
        self.running.remove(sequence)
        sequence.move_to(State.PREEMPTED)
        sequence.waiting_since_us = now_us
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence, state: State) -> None:
        """Out of the engine."""
        (self.running if sequence.state is State.RUNNING else self.waiting).remove(sequence)
        sequence.move_to(state)
        admission = sequence.admission
        del self._live[sequence.sequence_id]
        del self._by_handle[admission.stream_id, admission.handle]
        self._num_live[admission.priority] -= 1
