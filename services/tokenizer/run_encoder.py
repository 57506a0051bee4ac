"""Encodes runs of text through the segment cache; what is long goes to a thread (the library frees the GIL).

The cache belongs to the event loop: threads only encode. What is large is encoded one at a time.
"""

import asyncio
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from services.contract.errors import MeshError, Reason
from services.tokenizer.lru import Lru
from services.tokenizer.vocabulary import RunText, Vocabulary

INLINE_CHARS = 2048
"""Below this a thread's hand-over costs more than the encoding."""
LARGE_CHARS = 1 << 18
MAX_LARGE_CHARS = 64 << 20
"""Of large texts that are encoded or wait for it."""
BUSY_RETRY_S = 2.0
ENTRY_BYTES = 400
"""What an entry costs beside its texts and ids: key, tuple, array and the table's slots."""

Ids = Sequence[int]
A = TypeVar("A")
R = TypeVar("R")


def entry_cost(texts: Iterable[str], num_ids: int) -> int:
    """Bytes that a cached encoding occupies."""
    return ENTRY_BYTES + sum(map(sys.getsizeof, texts)) + 4 * num_ids


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
        large_thread: Executor,
        cache: Lru[RunText, Ids],
        note_lookups: Callable[[int, int], None],
    ) -> None:
        """`large_thread` is to be one thread; `note_lookups` takes hits and misses."""
        self._vocabulary = vocabulary
        self._threads = threads
        self._large_thread = large_thread
        self._num_large_chars = 0
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
        encoded: list[Ids] = [as_array(ids) for ids in await self._encode_fresh(runs)]
        for run, ids in zip(runs, encoded, strict=True):
            self._cache.put(run, ids, entry_cost([run.text], len(ids)))
        return encoded

    async def _encode_fresh(self, runs: list[RunText]) -> list[Ids]:
        return await self.off_loop(sum(len(run.text) for run in runs), self._vocabulary.encode_runs, runs)

    async def off_loop(self, num_chars: int, encode: Callable[[A], R], argument: A) -> R:
        """Runs `encode(argument)` here if it is short, else in a thread. Raises MeshError QUEUE_FULL."""
        if num_chars <= INLINE_CHARS:
            return encode(argument)
        loop = asyncio.get_running_loop()
        if num_chars <= LARGE_CHARS:
            return await loop.run_in_executor(self._threads, encode, argument)
        if self._num_large_chars and self._num_large_chars + num_chars > MAX_LARGE_CHARS:
            message = "too much long text waits to be encoded"
            raise MeshError(Reason.QUEUE_FULL, message, retry_delay_s=BUSY_RETRY_S)
        self._num_large_chars += num_chars
        try:
            return await loop.run_in_executor(self._large_thread, encode, argument)
        finally:
            self._num_large_chars -= num_chars


def as_array(ids: Ids) -> "array[int]":
    """Four bytes an id."""
    return ids if isinstance(ids, array) else array("I", ids)
