"""Where each id of a run lies in its segment's content, in UTF-8 bytes; the template's own text has 0 0."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from services.tokenizer.outline import Run
from services.tokenizer.windows import Offsets

NOWHERE = (0, 0)


def byte_positions(text: str) -> Sequence[int]:
    """Byte position of each character and of the end."""
    if text.isascii():
        return range(len(text) + 1)
    return array("Q", accumulate((len(character.encode()) for character in text), initial=0))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A content's place in its run, in characters."""

    start: int
    end: int
    positions: Sequence[int]

    def clip(self, start: int, end: int) -> tuple[int, int] | None:
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        return self.positions[first - self.start], self.positions[last - self.start]


def content_offsets(run: Run, contents: Sequence[str], offsets: Offsets) -> list[tuple[int, int]]:
    """Each id's byte range in the content that it touches first."""
    placed = _placed(run, contents)
    return [
        next((clipped for part in placed if (clipped := part.clip(start, end))), NOWHERE)
        for start, end in offsets
    ]


def _placed(run: Run, contents: Sequence[str]) -> list[_Placed]:
    whole = "".join(part if isinstance(part, str) else contents[part] for part in run.parts)
    filled = run.fill(contents).text
    position = -whole.find(filled) if filled else 0  # white space that a control token swallowed
    placed = []
    for part in run.parts:
        text = part if isinstance(part, str) else contents[part]
        if isinstance(part, int):
            placed.append(_Placed(position, position + len(text), byte_positions(text)))
        position += len(text)
    return placed
