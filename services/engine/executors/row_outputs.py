"""What a step's rows came to, from what was drawn for those of them that are sampled. Knows no tensors."""

from collections.abc import Iterable, Mapping, Sequence

from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import Row, RowOutput


def row_outputs(
    rows: Sequence[Row], drawn: Iterable[RowOutput], is_usable: Iterable[bool]
) -> tuple[RowOutput, ...]:
    """In the order of the rows. Takes a draw per sampled row; one that is not usable keeps nothing of it."""
    left = iter(drawn)
    return tuple(
        _judge(row, next(left) if row.is_sampled else None, ok)
        for row, ok in zip(rows, is_usable, strict=True)
    )


def remember(outputs: Iterable[RowOutput], states: Mapping[int, SequenceState]) -> None:
    """Appends what was drawn to the executor's own copies, by sequence."""
    for output in outputs:
        for token_id in output.ids:
            states[output.sequence_id].append(token_id)


def _judge(row: Row, drawn: RowOutput | None, is_usable: bool) -> RowOutput:
    if drawn is None or not is_usable:
        return RowOutput(sequence_id=row.sequence_id, ids=(), logprobs=None, is_usable=is_usable)
    return drawn
