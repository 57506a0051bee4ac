"""Encodes a long text window by window: the library works in 100 to 350 bytes a character, so bounded.

Knows no control tokens. A window ends where the ids behind it come out the same without what is in front.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Offsets = Sequence[tuple[int, int]]
"""Start and end of each id, in characters of the encoded text."""

WINDOW_CHARS = 1 << 17
CHECK_CHARS = 1 << 10
"""So far behind a seam the ids have to agree; what a vocabulary sees of its surroundings is far shorter."""
MAX_SEAMS_TRIED = 8

Encode = Callable[[str, bool], tuple[Sequence[int], Offsets]]
"""Text, and whether it is the beginning of the whole; ids and their offsets."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the text's ids."""

    start: int
    """Where its text starts, in characters of the whole."""
    ids: Sequence[int]
    offsets: Offsets
    """In characters of the window."""


def windows(
    encode: Encode, text: str, is_head: bool, *, window_chars: int = WINDOW_CHARS
) -> Iterator[Window]:
    """Joined, their ids are those of the whole text. One without a seam grows, if need be to the whole."""
    start, num_chars = 0, window_chars
    while True:
        part = text[start : start + num_chars]
        ids, offsets = encode(part, is_head and start == 0)
        if start + num_chars >= len(text):
            yield Window(start, ids, offsets)
            return
        seam = _find_seam(encode, part, ids, offsets)
        if seam is None:
            num_chars *= 2
            continue
        yield Window(start, ids[:seam], offsets[:seam])
        start, num_chars = start + offsets[seam][0], window_chars


def _find_seam(encode: Encode, part: str, ids: Sequence[int], offsets: Offsets) -> int | None:
    """Index of the first id of the next window."""
    for index in _candidates(part, offsets):
        tail_ids, _ = encode(part[offsets[index][0] :], False)
        if list(tail_ids) == list(ids[index:]):
            return index
    return None


def _candidates(part: str, offsets: Offsets) -> list[int]:
    """Ids that start a little before the end and share no character; those in white space first."""
    first, last = len(part) - 4 * CHECK_CHARS, len(part) - CHECK_CHARS
    found: list[int] = []
    for index in range(len(offsets) - 1, 0, -1):
        place = offsets[index][0]
        if place < max(first, 1):
            break
        if place <= last and offsets[index - 1][1] <= place < offsets[index][1]:
            found.append(index)
    found.sort(key=lambda index: not part[offsets[index][0]].isspace())
    return found[:MAX_SEAMS_TRIED]
