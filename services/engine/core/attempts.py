"""Which attempts at which identities were met, so that a late or repeated one is told apart.

Remembered 60 s after the end.
"""

from collections import deque
from dataclasses import dataclass

from services.engine.core.admission import Attempt, Identity

REMEMBERED_US = 60_000_000


@dataclass(slots=True)
class _Record:
    attempt: Attempt
    sequence_id: int | None
    """None once it is over."""


class AttemptBook:
    """The highest attempt per identity."""

    def __init__(self) -> None:
        self._records: dict[Identity, _Record] = {}
        self._over: deque[tuple[int, Identity, Attempt]] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def is_stale(self, identity: Identity, attempt: Attempt) -> bool:
        """True if an equal or higher attempt was met."""
        record = self._records.get(identity)
        return record is not None and attempt <= record.attempt

    def live_sequence(self, identity: Identity) -> int | None:
        """The sequence of the identity's attempt, while it lives."""
        record = self._records.get(identity)
        return record.sequence_id if record else None

    def begin(self, identity: Identity, attempt: Attempt, sequence_id: int) -> None:
        self._records[identity] = _Record(attempt, sequence_id)

    def end(self, identity: Identity, attempt: Attempt, now_us: int) -> None:
        """The attempt is over (also one that was never taken)."""
        record = self._records.get(identity)
        if record is not None and record.attempt > attempt:
            return
        self._records[identity] = _Record(attempt, None)
        self._over.append((now_us, identity, attempt))

    def prune(self, now_us: int) -> None:
        while self._over and self._over[0][0] + REMEMBERED_US <= now_us:
            _, identity, attempt = self._over.popleft()
            record = self._records.get(identity)
            if record is not None and record.attempt == attempt and record.sequence_id is None:
                del self._records[identity]
