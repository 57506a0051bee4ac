"""Encodes runs of text through the segment cache; what is long goes to a thread (the library frees the GIL).

The cache belongs to the event loop: threads only encode.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from services.tokenizer.lru import Lru
from services.tokenizer.vocabulary import RunText, Vocabulary

INLINE_CHARS = 2048
"""Below this a thread's hand-over costs more than the encoding."""
ENTRY_BYTES = 256
"""What an entry costs beside its text and ids."""

Ids = Sequence[int]
A = TypeVar("A")
R = TypeVar("R")


def entry_cost(text_chars: int, num_ids: int) -> int:
    """Bytes that a cached encoding occupies, roughly."""
    return ENTRY_BYTES + 2 * text_chars + 4 * num_ids


@dataclass(frozen=True, slots=True)
class EncodedRun:
    """One run's ids."""

    ids: Ids
    is_cached: bool


class RunEncoder:
    """The only way from run to ids without offsets."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        threads: Executor,
        cache: Lru[RunText, Ids],
        note_lookups: Callable[[int, int], None],
    ) -> None:
        """`note_lookups` takes hits and misses."""
        self._vocabulary = vocabulary
        self._threads = threads
        self._cache = cache
        self._note_lookups = note_lookups

    async def encode(self, runs: Sequence[RunText]) -> list[EncodedRun]:
        """Ids of every run, in order."""
        found = [self._cache.get(run) for run in runs]
        missing = [run for run, ids in zip(runs, found, strict=True) if ids is None]
        self._note_lookups(len(runs) - len(missing), len(missing))
        fresh = iter(await self._encode_missing(missing))
        return [
            EncodedRun(next(fresh), is_cached=False) if ids is None else EncodedRun(ids, is_cached=True)
            for ids in found
        ]

    async def _encode_missing(self, runs: list[RunText]) -> list[Ids]:
        if not runs:
            return []
        encoded: list[Ids] = [array("I", ids) for ids in await self._encode_fresh(runs)]
        for run, ids in zip(runs, encoded, strict=True):
            self._cache.put(run, ids, entry_cost(len(run.text), len(ids)))
        return encoded

    async def _encode_fresh(self, runs: list[RunText]) -> list[list[int]]:
        return await self.off_loop(sum(len(run.text) for run in runs), self._vocabulary.encode_runs, runs)

    async def off_loop(self, num_chars: int, encode: Callable[[A], R], argument: A) -> R:
        """Runs `encode(argument)` here if it is short, else in a thread."""
        if num_chars <= INLINE_CHARS:
            return encode(argument)
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode, argument)
