"""A row's ids once the step before it is over: the one in flight when it was planned is filled in."""

from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import PLACEHOLDER, Row


def known_ids(row: Row, state: SequenceState) -> tuple[int, ...]:
    """Ids to run; 0 stands where the step before could not draw the awaited one."""
    if row.chunk_ids[-1] != PLACEHOLDER:
        return row.chunk_ids
    last = 0 if is_lost(row, state) else state.ids[_end(row) - 1]
    return (*row.chunk_ids[:-1], last)


def is_lost(row: Row, state: SequenceState) -> bool:
    """True if the step before, whose id this row waited for, could not draw it."""
    return row.chunk_ids[-1] == PLACEHOLDER and len(state.ids) < _end(row)


def _end(row: Row) -> int:
    return row.start + len(row.chunk_ids)
