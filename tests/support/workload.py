"""The prompts of the exactness matrix, and ways to run them: one by one, all together, through kills."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from pagemesh import AsyncClient, TokenIds
from pagemesh.events import Answer, Event, TokenChunk, collect
from pagemesh.request import Options
from tests.support.mesh import Mesh

LENGTHS = (
    1,
    2,
    5,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    48,
    64,
    100,
    128,
    150,
    200,
    255,
    300,
    400,
    512,
    700,
    1000,
    1500,
    2000,
)
NUM_OUTPUT_TOKENS = 64
TIMEOUT_S = 1200.0
PROSE = Path(__file__).parents[2] / "LICENSE"


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the matrix."""

    prompt_ids: tuple[int, ...]
    options: Options


def prompts(model_folder: Path, lengths: Sequence[int] = LENGTHS) -> list[tuple[int, ...]]:
    """Pieces of prose, each from another place, of exactly these numbers of tokens."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    ids = tokenizer.encode(PROSE.read_text(), add_special_tokens=False).ids
    starts = [97 * index % (len(ids) - length) for index, length in enumerate(lengths)]
    return [tuple(ids[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def greedy(prompt_ids: tuple[int, ...]) -> Job:
    return Job(prompt_ids, Options(max_tokens=NUM_OUTPUT_TOKENS, temperature=0.0, ignore_eos=True))


def seeded(prompt_ids: tuple[int, ...], seed: int) -> Job:
    """Penalties, a filter, and three choices."""
    options = Options(
        max_tokens=NUM_OUTPUT_TOKENS, temperature=0.8, top_p=0.95, repetition_penalty=1.1,
        presence_penalty=0.5, frequency_penalty=0.2, seed=seed, n=3, ignore_eos=True,
    )  # fmt: skip
    return Job(prompt_ids, options)


async def run_alone(client: AsyncClient, jobs: Sequence[Job], **more: object) -> list[Answer]:
    return [await _run(client, job, more, None) for job in jobs]


async def run_together(client: AsyncClient, jobs: Sequence[Job], **more: object) -> list[Answer]:
    return list(await asyncio.gather(*(_run(client, job, more, None) for job in jobs)))


@dataclass(slots=True)
class Kills:
    """What the killer did."""

    num_kills: int = 0
    num_rounds: int = 0
    answers: list[list[Answer]] = field(default_factory=list)


async def run_through_kills(
    mesh: Mesh, client: AsyncClient, jobs: Sequence[Job], num_kills: int, seed: int
) -> Kills:
    """Runs all jobs together, round after round, while engines are killed at seeded numbers of tokens."""
    dice = random.Random(seed)
    kills = Kills()
    while kills.num_kills < num_kills:
        progress = Progress()
        streams = asyncio.gather(*(_run(client, job, {}, progress) for job in jobs))
        points = (dice.randrange(1, 8 * NUM_OUTPUT_TOKENS) for _ in range(kills.num_kills, num_kills))
        killer = asyncio.create_task(_kill_on_the_way(mesh, progress, kills, points))
        try:
            kills.answers.append(list(await streams))
        finally:
            progress.end()
            await killer
        kills.num_rounds += 1
    return kills


class Progress:
    """Tokens received by all streams of a round."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.is_over = False
        self._moved = asyncio.Event()

    def add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self._moved.set()

    def end(self) -> None:
        self.is_over = True
        self._moved.set()

    async def reach(self, num_tokens: int) -> bool:
        """True once so many were received, False if the round ended before."""
        while self.num_tokens < num_tokens and not self.is_over:
            self._moved.clear()
            await self._moved.wait()
        return not self.is_over


async def _kill_on_the_way(
    mesh: Mesh, progress: Progress, kills: Kills, gaps_in_tokens: Iterable[int]
) -> None:
    """Kills the engines in turn; the next one only when the last one serves again."""
    engines = [name for name in mesh.names if name.startswith("engine")]
    for gap in gaps_in_tokens:
        if not await progress.reach(progress.num_tokens + gap):
            return
        victim = engines[kills.num_kills % len(engines)]
        mesh.kill(victim)
        kills.num_kills += 1
        mesh.start_again(victim)
        await asyncio.to_thread(mesh.wait_ready, victim)


async def _run(client: AsyncClient, job: Job, more: dict[str, object], progress: Progress | None) -> Answer:
    events: list[Event] = []
    options = Options(**{**job.options, **more})  # type: ignore[typeddict-item]
    async for event in client.generate(TokenIds(job.prompt_ids), timeout_s=TIMEOUT_S, **options):
        assert event.seq_id == len(events), (event.seq_id, len(events))
        events.append(event)
        if progress is not None and isinstance(event, TokenChunk):
            progress.add(len(event.ids))
    return collect(events)
