"""Keeps callers' text from being read as control where a prompt is rendered and encoded whole.

Control tokens that a content spells are taken out before rendering and put back as text behind it.
"""

import re
from collections.abc import Sequence

from services.tokenizer.outline import Control, Piece, Run, cut_at_controls
from services.tokenizer.vocabulary import RunText, Vocabulary


class Guard:
    """The spelled control tokens of one prompt."""

    def __init__(self, vocabulary: Vocabulary, mark: str) -> None:
        self._vocabulary = vocabulary
        self._mark = mark
        self._spelled: list[str] = []

    @property
    def is_needed(self) -> bool:
        """True if any content spelled a control token."""
        return bool(self._spelled)

    def take_out(self, content: str) -> str:
        """The content with place-holders."""
        kept: list[str] = []
        position = 0
        for span in self._vocabulary.find_controls(content):
            kept += [content[position : span.start], f"{self._mark}{len(self._spelled)};"]
            self._spelled.append(content[span.start : span.end])
            position = span.end
        return "".join([*kept, content[position:]])

    def put_back(self, text: str) -> str:
        """The text with what was taken out."""
        pattern = re.escape(self._mark) + r"(\d+);"
        return re.sub(pattern, lambda match: self._spelled[int(match[1])], text)

    def pieces(self, rendered: str) -> list[Piece]:
        """Pieces of a prompt that was rendered with place-holders."""
        pieces = cut_at_controls((rendered,), self._vocabulary.find_controls)
        return [self._refill(piece) for piece in pieces]

    def _refill(self, piece: Piece) -> Piece:
        if isinstance(piece, Control):
            return piece
        run: RunText = piece.fill(())
        return Run((self.put_back(run.text),), piece.is_head, strips_left=False, strips_right=False)


def take_out_all(guard: Guard, contents: Sequence[str]) -> list[str]:
    """Contents with place-holders."""
    return [guard.take_out(content) for content in contents]
