"""One row of the ladder. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Call:
    """One question, as its caller met it."""

    first_ms: float
    """Until the caller could read something: the whole answer, where nothing is streamed."""
    whole_ms: float
    computed_ms: float
    """Until the first token existed."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over calls."""

    name: str
    first_ms: float
    whole_ms: float
    computed_ms: float
    num_calls: int


def row_of(name: str, calls: Sequence[Call]) -> Row:
    return Row(
        name,
        median(call.first_ms for call in calls),
        median(call.whole_ms for call in calls),
        median(call.computed_ms for call in calls),
        len(calls),
    )
