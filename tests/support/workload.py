"""The prompts of the exactness matrix, and ways to run them: one by one, all together, through kills."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from pagemesh import AsyncClient, TokenIds
from pagemesh.events import Answer, Event, TokenChunk, collect
from pagemesh.request import Options
from services.gateway.life.request import CRASH_LIMIT
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
SCARCE_LENGTH = 600
TIMEOUT_S = 1200.0
RESERVE = 0.1
"""Share of the pool that admissions leave, by default."""
PROSE = Path(__file__).parents[2] / "LICENSE"


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the matrix."""

    prompt_ids: tuple[int, ...]
    options: Options

    @property
    def num_choices(self) -> int:
        return self.options.get("n", 1)


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


def scarcity(jobs: Sequence[Job], block_size: int) -> tuple[list[int], int]:
    """Indexes of jobs, and blocks that hold their prompts but not all outputs, so that somebody gives way.

    A long prompt's reserve would be enough for everybody's output: those are left out.
    """
    picked = [index for index, job in enumerate(jobs) if len(job.prompt_ids) <= SCARCE_LENGTH]
    num_known = sum(-(-len(jobs[index].prompt_ids) // block_size) for index in picked)
    return picked, int(num_known / (1 - RESERVE)) + 3


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
    """Runs all jobs together, round after round, while engines are killed at seeded numbers of tokens.

    A choice that lost two engines without a token between is spared until it has one: the third would end it.
    """
    dice = random.Random(seed)
    kills = Kills()
    while kills.num_kills < num_kills:
        progress = Progress(jobs)
        runs = (_run(client, job, {}, partial(progress.add, index)) for index, job in enumerate(jobs))
        streams = asyncio.gather(*runs)
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
    """Tokens received by all streams of a round, and who of them was hit how often since its last one."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.num_tokens = 0
        self.is_over = False
        self._moved = asyncio.Event()
        choices = [(index, choice) for index, job in enumerate(jobs) for choice in range(job.num_choices)]
        self._num_left = dict.fromkeys(choices, NUM_OUTPUT_TOKENS)
        self._num_hits = dict.fromkeys(choices, 0)

    def add(self, job: int, event: TokenChunk) -> None:
        choice = job, event.choice
        self.num_tokens += len(event.ids)
        self._num_left[choice] -= len(event.ids)
        self._num_hits[choice] = 0
        if not self._num_left[choice]:
            del self._num_hits[choice]
        self._moved.set()

    def hit(self) -> None:
        """An engine was killed: perhaps anybody's."""
        for choice in self._num_hits:
            self._num_hits[choice] += 1

    def end(self) -> None:
        self.is_over = True
        self._moved.set()

    async def reach(self, num_tokens: int) -> bool:
        """True once so many were received and nobody has to be spared, False if the round ended before."""
        while not self.is_over and (self.num_tokens < num_tokens or self._is_anybody_spared()):
            self._moved.clear()
            await self._moved.wait()
        return not self.is_over

    def _is_anybody_spared(self) -> bool:
        return max(self._num_hits.values(), default=0) >= CRASH_LIMIT - 1


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
        progress.hit()  # only now: tokens from before the kill were still on their way


async def _run(
    client: AsyncClient, job: Job, more: dict[str, object], note: Callable[[TokenChunk], None] | None
) -> Answer:
    events: list[Event] = []
    options = Options(**{**job.options, **more})  # type: ignore[typeddict-item]
    async for event in client.generate(TokenIds(job.prompt_ids), timeout_s=TIMEOUT_S, **options):
        assert event.seq_id == len(events), (event.seq_id, len(events))
        events.append(event)
        if note is not None and isinstance(event, TokenChunk):
            note(event)
    return collect(events)
