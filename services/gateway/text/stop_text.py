"""Finds the first of some stop texts in a stream of text and holds back only what may still become one.

The match that ends first wins; of two that end together, the longer. Knows no ids, counts or finish reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop text that was met."""

    stop_text: str


class StopText:
    """Matches a few stop texts side by side (Knuth, Morris, Pratt): O(texts) per character, amortised."""

    def __init__(self, stop_texts: Sequence[str]) -> None:
        self._stop_texts = tuple(sorted(set(stop_texts), key=len, reverse=True))
        self._fallbacks = tuple(_fallbacks(text) for text in self._stop_texts)
        self._first_characters = frozenset(text[0] for text in self._stop_texts)
        self._matched = [0] * len(self._stop_texts)
        self._held = ""

    def push(self, text: str, may_match: bool) -> tuple[str, StopMatch | None]:
        """Takes more text; returns what is certain now, up to the match's start if there is one.

        A match that ends in this text while it may not is ignored; it can still be the start of a longer one.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None
        text = self._held + text
        for end in range(len(self._held), len(text)):
            stop_text = self._advance(text[end])
            if stop_text is not None and may_match:
                self._held = ""
                return text[: end + 1 - len(stop_text)], StopMatch(stop_text)
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain], None

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def copy(self) -> Self:
        """An independent matcher in the same state."""
        twin = type(self)(self._stop_texts)
        twin._matched = list(self._matched)
        twin._held = self._held
        return twin

    def _advance(self, character: str) -> str | None:
        """Moves every stop text on by one character; returns the longest that is complete."""
        complete = None
        for i, stop_text in enumerate(self._stop_texts):
            matched = self._matched[i]
            while matched and stop_text[matched] != character:
                matched = self._fallbacks[i][matched]
            if stop_text[matched] == character:
                matched += 1
            if matched == len(stop_text):
                complete = complete or stop_text
                matched = self._fallbacks[i][matched]
            self._matched[i] = matched
        return complete


def _fallbacks(text: str) -> list[int]:
    """For each length of a matched prefix, the longest shorter prefix that it ends with."""
    fallbacks = [0, 0]
    for character in text[1:]:
        length = fallbacks[-1]
        while length and text[length] != character:
            length = fallbacks[length]
        fallbacks.append(length + 1 if text[length] == character else 0)
    return fallbacks
