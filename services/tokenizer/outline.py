"""What a template writes around contents, and the pieces that this comes to: control ids and runs of text.

Seams lie only at control tokens: literal text next to a content belongs to the same run.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.tokenizer.vocabulary import ControlSpan, RunText

Part = str | int
"""Literal text, or the index of the message whose content stands here."""

# What the tokenizer library strips around a control token: Unicode's White_Space, not Python's.
_WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


@dataclass(frozen=True, slots=True)
class Outline:
    """A rendering of messages with contents left open."""

    parts: tuple[Part, ...] | None
    """None if the template looks into contents, so that it has to see the real ones."""
    is_dated: bool
    """It holds the date: good for this request only."""


@dataclass(frozen=True, slots=True)
class Control:
    """A control token by id."""

    id: int


@dataclass(frozen=True, slots=True)
class Run:
    """Text between control tokens, contents still open."""

    parts: tuple[Part, ...]
    is_head: bool
    strips_left: bool
    """The control token in front swallows white space."""
    strips_right: bool

    def fill(self, contents: Sequence[str]) -> RunText:
        """The run with its contents."""
        text = "".join(part if isinstance(part, str) else contents[part] for part in self.parts)
        if self.strips_left:
            text = text.lstrip(_WHITE_SPACE)
        if self.strips_right:
            text = text.rstrip(_WHITE_SPACE)
        return RunText(text, self.is_head)

    @property
    def has_content(self) -> bool:
        """False if it is the template's own text only."""
        return any(isinstance(part, int) for part in self.parts)


Piece = Control | Run


def split_at_contents(text: str, mark: str) -> tuple[Part, ...]:
    """Parts of a rendering in which the sentinel `mark`N; stands for content N."""
    pieces = re.split(re.escape(mark) + r"(\d+);", text)
    parts: list[Part] = []
    for position, piece in enumerate(pieces):
        if position % 2:
            parts.append(int(piece))
        elif piece:
            parts.append(piece)
    return tuple(parts)


def cut_at_controls(
    parts: Sequence[Part], find_controls: Callable[[str], Sequence[ControlSpan]]
) -> tuple[Piece, ...]:
    """Control ids and the runs between them. Contents are never searched."""
    pieces: list[Piece] = []
    run: list[Part] = []
    strips_left = False

    def close_run(strips_right: bool) -> None:
        if run:
            pieces.append(Run(tuple(run), not pieces, strips_left, strips_right))
            run.clear()

    for part in parts:
        if isinstance(part, int):
            run.append(part)
            continue
        position = 0
        for span in find_controls(part):
            if part[position : span.start]:
                run.append(part[position : span.start])
            close_run(span.token.eats_left)
            pieces.append(Control(span.token.id))
            strips_left = span.token.eats_right
            position = span.end
        if part[position:]:
            run.append(part[position:])
    close_run(False)
    return tuple(pieces)
