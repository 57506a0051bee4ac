"""Keeps callers' text from being read as control where a prompt is rendered and encoded whole.

Control tokens that a content spells are taken out before rendering and put back as text behind it. What a
template could join to one (two contents side by side, a text whose middle it deletes) is found with a veil.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

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

    def pieces(self, rendered: str, veil: "Veil | None" = None) -> list[Piece]:
        """Pieces of a prompt that was rendered with place-holders (and veiled)."""
        pieces = cut_at_controls((rendered,), self._vocabulary.find_controls)
        return [self._refill(piece, veil) for piece in pieces]

    def _refill(self, piece: Piece, veil: "Veil | None") -> Piece:
        if isinstance(piece, Control):
            return piece
        run: RunText = piece.fill(())
        text = self.put_back(run.text)
        if veil is not None:
            text = veil.take_off(text)
        return Run((text,), piece.is_head, strips_left=False, strips_right=False)


def take_out_all(guard: Guard, contents: Sequence[str]) -> list[str]:
    """Contents with place-holders."""
    return [guard.take_out(content) for content in contents]


class Veil:
    """Contents in which every character that could be part of a control token has a stand-in, one for one.

    What is a control token in a rendering of veiled contents is the template's own.
    """

    def __init__(self, spellings: Iterable[str], contents: Sequence[str]) -> None:
        """Raises ValueError if the contents leave no stand-ins."""
        alphabet = {char for spelling in spellings for char in _folded(spelling) if not char.isspace()}
        used = set().union(*contents)
        veiled = sorted(
            char for char in used if not char.isspace() and not alphabet.isdisjoint(_folded(char))
        )
        free = (code for code in range(_FIRST_STAND_IN, _LAST_STAND_IN + 1) if chr(code) not in used)
        self._stand_ins = {ord(char): code for char, code in zip(veiled, free, strict=False)}
        if len(self._stand_ins) < len(veiled):
            raise ValueError("too many different characters")
        self._originals = {code: char for char, code in self._stand_ins.items()}

    def put_on(self, content: str) -> str:
        """The content with stand-ins."""
        return content.translate(self._stand_ins)

    def take_off(self, text: str) -> str:
        """The text with the characters themselves."""
        return text.translate(self._originals)

    def covers(self, text: str) -> bool:
        """True if any of it is a stand-in."""
        return self.take_off(text) != text

    def edges(self, text: str) -> tuple[str, str]:
        """What the template wrote in front of the first and behind the last stand-in."""
        places = [place for place, char in enumerate(text) if ord(char) in self._originals]
        if not places:
            return text.strip(), text.strip()
        return text[: places[0]].strip(), text[places[-1] + 1 :].strip()


_FIRST_STAND_IN, _LAST_STAND_IN = 0xF0000, 0x10FFFD


def _folded(text: str) -> str:
    """All that a normalizer may make of it."""
    return text + unicodedata.normalize("NFKD", text).casefold() + unicodedata.normalize("NFKC", text)


def _texts_between(text: str, vocabulary: Vocabulary) -> tuple[list[int], list[str]]:
    """A rendering's control ids, and the texts in front of, between and behind them."""
    spans = vocabulary.find_controls(text)
    starts = [0, *(span.end for span in spans)]
    ends = [*(span.start for span in spans), len(text)]
    return [span.token.id for span in spans], [text[a:b] for a, b in zip(starts, ends, strict=True)]


def has_structure_of(text: str, veiled: str, veil: Veil, vocabulary: Vocabulary) -> bool:
    """True if the text has the veiled rendering's control tokens, and the template's words next to each."""
    ids, texts = _texts_between(text, vocabulary)
    own_ids, own_texts = _texts_between(veiled, vocabulary)
    if ids != own_ids:
        return False
    for between, own in zip(texts, own_texts, strict=True):
        head, tail = map(_timeless, veil.edges(own))
        whole = _timeless(between.strip())
        if not whole.startswith(head) or not whole.endswith(tail):
            return False
    return True


def _timeless(text: str) -> str:
    """Without the time that a template may tell: it goes on between two renderings."""
    return re.sub(r"\d+", "0", text)
