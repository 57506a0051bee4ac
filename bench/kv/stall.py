"""K4: how long streams stand still when a prompt of 4,000 tokens arrives beside them.

A step runs at most one chunk of it, so that every running stream gets a token per chunk: that is counted, and
the longest gap is held against what a chunk takes alone. Without chunks, the gap is the whole prompt.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.generated import table
from pagemesh import AsyncClient, TokenChunk, TokenIds
from pagemesh.request import CachePolicy, Options
from tests.support.mesh import Mesh

NUM_STREAMS = 8
PROMPT_TOKENS = 4_000
CHUNK_TOKENS = 512
SHORT_PROMPT = 32
WARM_TOKENS = 16
"""That every stream has before the long prompt comes."""
WHOLE = 8_192
"""Tokens a step without chunks."""
BAR = 1.25
"""Times a chunk and a step of the streams: the clock of a busy machine is not exact."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One arrival of the long prompt."""

    worst_gap_ms: float
    ttft_ms: float
    """Of the long prompt."""
    fewest_tokens: int
    """That a running stream got meanwhile."""
    step_ms: float
    """Median gap before."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Arrivals with chunks and without, and what a chunk takes."""

    chunk_ms: float
    """The last and slowest one of the prompt, alone."""
    chunked: list[Stall]
    whole: list[Stall]


def measure_stalls(
    executor: str, model: Path | str, num_arrivals: int, report: Callable[[str], None]
) -> Stalls:
    chunked, chunk_ms = asyncio.run(_measure(executor, model, CHUNK_TOKENS, num_arrivals, report))
    whole, _ = asyncio.run(_measure(executor, model, WHOLE, num_arrivals, report))
    return Stalls(chunk_ms, chunked, whole)


async def _measure(
    executor: str, model: Path | str, chunk_tokens: int, num_arrivals: int, report: Callable[[str], None]
) -> tuple[list[Stall], float]:
    settings = {"engine": {"chunk_tokens": chunk_tokens, "max_batch_tokens": max(2048, chunk_tokens)}}
    async with (
        Mesh(engines=1, executor=executor, model=model, settings=settings) as mesh,
        mesh.async_client() as client,
    ):
        stalls = []
        for number in range(num_arrivals):
            stalls.append(await _arrival(client, number))
            report(f"  chunks of {chunk_tokens}: worst gap {stalls[-1].worst_gap_ms:.0f} ms")
        return stalls, await _last_chunk_ms(client)


async def _last_chunk_ms(client: AsyncClient) -> float:
    """What the prompt takes longer than the same without its last chunk."""
    pairs = []
    for number in range(5):
        shorter = await _ttft_ms(client, PROMPT_TOKENS - CHUNK_TOKENS, 100 + number)
        pairs.append(await _ttft_ms(client, PROMPT_TOKENS, 200 + number) - shorter)
    return median(pairs)


async def _arrival(client: AsyncClient, number: int) -> Stall:
    now_s = asyncio.get_running_loop().time
    streams = [_Stream(client, 10 * number + index) for index in range(NUM_STREAMS)]
    async with asyncio.TaskGroup() as group:  # a stream that fails ends the wait for the others
        tasks = [group.create_task(stream.run()) for stream in streams]
        await asyncio.gather(*(stream.is_warm.wait() for stream in streams))
        begin_s = now_s()
        ttft_ms = await _ttft_ms(client, PROMPT_TOKENS, number)
        end_s = now_s()
        for task in tasks:
            task.cancel()
    return _stall([stream.times for stream in streams], begin_s, end_s, ttft_ms)


def _stall(times: Sequence[Sequence[float]], begin_s: float, end_s: float, ttft_ms: float) -> Stall:
    """Gaps that the prompt's time overlaps; before it, the rhythm as it was."""
    gaps = [gap for stream in times for gap in itertools.pairwise(stream)]
    during = [late - early for early, late in gaps if late > begin_s and early < end_s]
    before = [late - early for early, late in gaps if late <= begin_s]
    fewest = min(sum(begin_s < at_s <= end_s for at_s in stream) for stream in times)
    return Stall(1000 * max(during), ttft_ms, fewest, 1000 * median(before))


class _Stream:
    """Notes when each token arrives, until it is cancelled."""

    def __init__(self, client: AsyncClient, number: int) -> None:
        self._client = client
        self._number = number
        self.times: list[float] = []
        self.is_warm = asyncio.Event()

    async def run(self) -> None:
        now_s = asyncio.get_running_loop().time
        prompt = _prompt(SHORT_PROMPT, self._number)
        async with aclosing(self._client.generate(prompt, **_options(2_000))) as events:
            async for event in events:
                if isinstance(event, TokenChunk):
                    self.times.append(now_s())
                if len(self.times) >= WARM_TOKENS:
                    self.is_warm.set()


async def _ttft_ms(client: AsyncClient, num_tokens: int, number: int) -> float:
    now_s = asyncio.get_running_loop().time
    begin_s = now_s()
    async with aclosing(client.generate(_prompt(num_tokens, number), **_options(1))) as events:
        async for event in events:
            if isinstance(event, TokenChunk):
                return 1000 * (now_s() - begin_s)
    raise AssertionError("no token came")


def _prompt(num_tokens: int, number: int) -> TokenIds:
    """Unlike every other from the first id on."""
    return TokenIds(tuple(1_000 + (number * 7_919 + 31 * index) % 20_000 for index in range(num_tokens)))


def _options(max_tokens: int) -> Options:
    return Options(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, cache_policy=CachePolicy.BYPASS)


def lines(found: Stalls) -> list[str]:
    num_chunks = -(-PROMPT_TOKENS // CHUNK_TOKENS)
    worst = max(it.worst_gap_ms for it in found.chunked)
    step_ms = median(it.step_ms for it in found.chunked)
    limit_ms = found.chunk_ms + step_ms
    rows = [
        (
            f"worst gap, chunks of {CHUNK_TOKENS}",
            f"{worst:.0f} ms",
            f"a chunk {found.chunk_ms:.0f} + a step {step_ms:.0f} ms",
        ),
        ("as a share of these", f"{worst / limit_ms:.2f}", f"≤ {BAR}"),
        (
            "fewest tokens of a stream meanwhile",
            str(min(it.fewest_tokens for it in found.chunked)),
            f"≥ {num_chunks - 1}",
        ),
        ("worst gap, the prompt in one step", f"{max(it.worst_gap_ms for it in found.whole):.0f} ms", ""),
        (
            "the prompt's TTFT, chunks / one step",
            " / ".join(f"{median(it.ttft_ms for it in side):.0f}" for side in (found.chunked, found.whole))
            + " ms",
            "",
        ),
    ]
    return table(
        (f"a prompt of {PROMPT_TOKENS:,} tokens beside {NUM_STREAMS} streams", "figure", "bar"), rows
    )
