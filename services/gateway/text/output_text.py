"""One choice's output as a pure function of its ids: its text, and where and why it ends.

Knows no streams or attempts: the caller feeds only ids that it accepted, in order. Feeding the same ids again
(a resume, a move) gives the same text, the same held-back rest and the same end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.gateway.spec.generation_spec import FinishReason
from services.gateway.text.detokenizer import Detokenizer, TokenTable
from services.gateway.text.stop_text import StopMatch, StopText


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What ends a choice and what its text shows."""

    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    """All ids that end the choice: the caller's, and the end-of-sequence ids unless those are ignored."""
    stop_texts: tuple[str, ...] = ()
    include_stop: bool = False
    """Shows what stopped the choice; a special stop id stays hidden while skip_special_tokens holds."""
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended; at most one of stop_id and stop_text is set."""

    reason: FinishReason
    stop_id: int | None = None
    stop_text: str | None = None


class Delta(NamedTuple):
    """What some ids came to. One is made per token, which a frozen dataclass is slow at."""

    text: str
    """Text that became certain with them."""
    num_accepted: int
    """How many of them count: through the one that completes the finish."""
    num_discarded: int
    """The rest of them."""
    finish: Finish | None
    """Set in the one delta that ends the choice."""


class OutputText:
    """The text of one choice, id by id."""

    def __init__(self, table: TokenTable, prompt_ids: Sequence[int], rules: OutputRules) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(table, prompt_ids, rules.skip_special_tokens)
        self._stop_text = StopText(rules.stop_texts)
        self._num_tokens = 0
        self._finish: Finish | None = None

    @property
    def num_tokens(self) -> int:
        """Accepted ids so far: the completion's count."""
        return self._num_tokens

    @property
    def finish(self) -> Finish | None:
        """How the choice ended, None while it goes on."""
        return self._finish

    def push(self, ids: Sequence[int]) -> Delta:
        """Takes the next ids; those after the finish are discarded."""
        if self._finish is not None:
            return Delta("", 0, len(ids), None)
        if len(ids) == 1:
            return Delta(self._push_one(ids[0]), 1, 0, self._finish)
        pieces = []
        num_accepted = 0
        for token_id in ids:
            num_accepted += 1
            pieces.append(self._push_one(token_id))
            if self._finish is not None:
                break
        return Delta("".join(pieces), num_accepted, len(ids) - num_accepted, self._finish)

    def finish_run_time(self) -> str:
        """Ends the choice because its run time is over; returns the text that was still held back."""
        assert self._finish is None, self._finish
        self._finish = Finish(FinishReason.RUN_TIME)
        return self._flush()

    def _push_one(self, token_id: int) -> str:
        self._num_tokens += 1
        may_stop = self._num_tokens >= self._rules.min_tokens
        if may_stop and token_id in self._rules.stop_ids:
            return self._push_stop_id(token_id)
        text, match = self._stop_text.push(self._detokenizer.push(token_id), may_stop)
        if match is not None:
            return self._finish_at(match, text)
        if self._num_tokens >= self._rules.max_tokens:
            self._finish = Finish(FinishReason.LENGTH)
            return text + self._flush()
        return text

    def _push_stop_id(self, token_id: int) -> str:
        """Its own text may complete a stop text, which comes first; else it shows only if asked for."""
        shown = self._detokenizer.copy()
        matcher = self._stop_text.copy()
        text, match = matcher.push(shown.push(token_id), True)
        if match is not None:
            return self._finish_at(match, text)
        self._finish = Finish(FinishReason.STOP, stop_id=token_id)
        if not self._rules.include_stop:
            return self._flush()
        self._detokenizer, self._stop_text = shown, matcher
        return text + self._flush()

    def _finish_at(self, match: StopMatch, text: str) -> str:
        self._finish = Finish(FinishReason.STOP, stop_text=match.stop_text)
        return text + match.stop_text if self._rules.include_stop else text

    def _flush(self) -> str:
        return self._stop_text.flush() + self._detokenizer.flush()
