"""Token events that wait for the writer, merged per choice, and the gap-free numbering of what is written.

It knows no stream; how much may wait is bounded by the request's max_tokens.
"""

from collections import deque

from services.gateway.life.request_words import EmitTokens

MAX_IDS_PER_EVENT = 1024
"""Keeps an event with log-probabilities well under 1 MiB."""


class Outbox:
    """Text deltas concatenate, so ids that wait for a slow reader become one event per choice."""

    def __init__(self, next_seq_id: int = 0) -> None:
        self._next_seq_id = next_seq_id
        self._waiting: deque[EmitTokens] = deque()
        self._last_of_choice: dict[int, EmitTokens] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, tokens: EmitTokens) -> None:
        """Takes the next ids of a choice; they must follow those taken before."""
        last = self._last_of_choice.get(tokens.choice)
        if last is None or len(last.ids) + len(tokens.ids) > MAX_IDS_PER_EVENT:
            self._waiting.append(tokens)
            self._last_of_choice[tokens.choice] = tokens
            return
        assert tokens.first_index == last.first_index + len(last.ids), (tokens.first_index, last.first_index)
        last.ids += tokens.ids
        last.text += tokens.text
        if last.logprobs is not None and tokens.logprobs is not None:
            last.logprobs += tokens.logprobs

    def take(self) -> EmitTokens | None:
        """The oldest event that waits, None if none does."""
        if not self._waiting:
            return None
        tokens = self._waiting.popleft()
        if self._last_of_choice.get(tokens.choice) is tokens:
            del self._last_of_choice[tokens.choice]
        return tokens

    def number(self) -> int:
        """seq_id of the event that is written now."""
        seq_id = self._next_seq_id
        self._next_seq_id += 1
        return seq_id
