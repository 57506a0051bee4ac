"""Alone = batched = warm = chunked = preempted = moved, and all of it equals transformers in fp32.

A quarter of the matrix by default; all of it with PAGEMESH_EXACTNESS=full (`make exactness`).
"""

import asyncio
import math
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

from pagemesh.events import Answer
from pagemesh.request import CachePolicy
from services.contract.model_folder import resolve_model
from services.engine.step import SamplingSpec, SequenceSpec
from tests.support.ledger import Ledger
from tests.support.mesh import Mesh
from tests.support.oracle import Oracle
from tests.support.workload import (
    LENGTHS,
    NUM_OUTPUT_TOKENS,
    Job,
    greedy,
    prompts,
    run_alone,
    run_through_kills,
    run_together,
    scarcity,
    seeded,
)

pytestmark = pytest.mark.exactness

IS_FULL = os.environ.get("PAGEMESH_EXACTNESS") == "full"
CHUNKS = (1, 15, 16, 17, 64, 300) if IS_FULL else (1, 17)
CHUNK_LENGTHS = {1: LENGTHS[:16]}
"""A chunk of one is a step per token: prompts of more than 200 tokens would take hours."""
NUM_KILLS = 20 if IS_FULL else 5
NUM_SEEDED = 8 if IS_FULL else 2
PARTINGS_PER_TOKEN = 1 / 500
BOTH_CORES = {"num_threads": 2}
"""Where only one engine runs."""
BLOCK = 16


@pytest.fixture(scope="module")
def model_folder() -> Path:
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def oracle(model_folder: Path) -> Oracle:
    return Oracle(model_folder)


@pytest.fixture(scope="module")
def greedy_jobs(model_folder: Path) -> list[Job]:
    return [greedy(ids) for ids in prompts(model_folder)][:: 1 if IS_FULL else 4]


@pytest.fixture(scope="module")
def seeded_jobs(model_folder: Path) -> list[Job]:
    step = len(LENGTHS) // NUM_SEEDED
    picked = prompts(model_folder)[step // 2 :: step]
    return [seeded(ids, seed=1000 + index) for index, ids in enumerate(picked)]


class Court:
    """Compares answers with the reference run, and where they part, with the oracle."""

    def __init__(self, oracle: Oracle, reference: Sequence[Answer]) -> None:
        self._oracle = oracle
        self._reference = reference

    def judge(self, jobs: Sequence[Job], answers: Sequence[Answer]) -> tuple[int, int]:
        """Asserts that every answer holds; gives (tokens, ties and partings)."""
        num_tokens = num_ties = 0
        for job, answer, known in zip(jobs, answers, self._reference, strict=True):
            for index, choice in enumerate(answer.choices):
                assert len(choice.ids) == NUM_OUTPUT_TOKENS
                num_tokens += len(choice.ids)
                if choice.ids != known.choices[index].ids:
                    num_ties += self.ties(job, index, choice.ids)
        assert num_ties <= math.ceil(num_tokens * PARTINGS_PER_TOKEN), (num_ties, num_tokens)
        return num_tokens, num_ties

    def ties(self, job: Job, choice: int, ids: Sequence[int]) -> int:
        """Ties (greedy) or partings (seeded) of one output against the oracle; nothing else may differ."""
        if job.options["temperature"] == 0.0:
            verdict = self._oracle.judge_greedy(job.prompt_ids, ids)
        else:
            verdict = self._oracle.judge_seeded(_spec(job, choice), ids)
        assert not verdict.wrong, (len(job.prompt_ids), verdict)
        return verdict.num_ties


def _spec(job: Job, choice: int) -> SequenceSpec:
    """The sequence as an engine meets it. The wire's floats are float32."""
    options = job.options
    sampling = SamplingSpec(
        temperature=_float32(options["temperature"]),
        top_p=_float32(options["top_p"]),
        repetition_penalty=_float32(options["repetition_penalty"]),
        presence_penalty=_float32(options["presence_penalty"]),
        frequency_penalty=_float32(options["frequency_penalty"]),
        seed=options["seed"],
        choice=choice,
    )
    return SequenceSpec(0, job.prompt_ids, len(job.prompt_ids), sampling)


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@pytest.fixture(scope="module")
def plain_mesh() -> Iterator[Mesh]:
    with Mesh(engines=1, executor="torch", settings={"engine": BOTH_CORES}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def reference(plain_mesh: Mesh, greedy_jobs: list[Job], seeded_jobs: list[Job]) -> dict[str, list[Answer]]:
    """Every job alone and cold."""

    async def run(jobs: list[Job]) -> list[Answer]:
        async with plain_mesh.async_client() as client:
            return await run_alone(client, jobs, cache_policy=CachePolicy.BYPASS)

    return {"greedy": asyncio.run(run(greedy_jobs)), "seeded": asyncio.run(run(seeded_jobs))}


@pytest.fixture
def jobs(kind: str, greedy_jobs: list[Job], seeded_jobs: list[Job]) -> list[Job]:
    return greedy_jobs if kind == "greedy" else seeded_jobs


@pytest.fixture
def court(kind: str, oracle: Oracle, reference: dict[str, list[Answer]]) -> Court:
    return Court(oracle, reference[kind])


both_kinds = pytest.mark.parametrize("kind", ["greedy", "seeded"])


@both_kinds
async def test_alone_equals_transformers(
    kind: str,
    jobs: list[Job],
    court: Court,
    oracle: Oracle,
    reference: dict[str, list[Answer]],
    ledger: Ledger,
) -> None:
    num_ties = sum(
        court.ties(job, index, choice.ids)
        for job, answer in zip(jobs, reference[kind], strict=True)
        for index, choice in enumerate(answer.choices)
    )
    num_tokens = sum(len(choice.ids) for answer in reference[kind] for choice in answer.choices)
    assert num_ties <= math.ceil(num_tokens * PARTINGS_PER_TOKEN)
    ledger(f"{kind} alone against transformers", num_tokens, num_ties)


@both_kinds
async def test_together_and_warm(
    kind: str, jobs: list[Job], court: Court, plain_mesh: Mesh, ledger: Ledger
) -> None:
    async with plain_mesh.async_client() as client:
        cold = await run_together(client, jobs, cache_policy=CachePolicy.BYPASS)
        await run_together(client, jobs)
        warm = await run_together(client, jobs)
    ledger(f"{kind} together", *court.judge(jobs, cold))
    ledger(f"{kind} warm", *court.judge(jobs, warm))
    for job, answer in zip(jobs, warm, strict=True):
        assert answer.usage.cached_tokens == BLOCK * ((len(job.prompt_ids) - 1) // BLOCK)


@pytest.mark.parametrize("chunk", CHUNKS)
async def test_chunked(
    chunk: int, greedy_jobs: list[Job], oracle: Oracle, reference: dict[str, list[Answer]], ledger: Ledger
) -> None:
    lengths = CHUNK_LENGTHS.get(chunk, LENGTHS)
    picked = [index for index, job in enumerate(greedy_jobs) if len(job.prompt_ids) in lengths]
    jobs = [greedy_jobs[index] for index in picked]
    settings = {"engine": {"chunk_tokens": chunk, **BOTH_CORES}}
    async with Mesh(engines=1, executor="torch", settings=settings) as mesh, mesh.async_client() as client:
        answers = await run_together(client, jobs)
        num_steps = mesh.metrics("engine-0").total("pagemesh_engine_step_seconds_count")
    assert num_steps >= max(len(job.prompt_ids) for job in jobs) / chunk
    court = Court(oracle, [reference["greedy"][index] for index in picked])
    ledger(f"greedy in chunks of {chunk}", *court.judge(jobs, answers))


@both_kinds
async def test_preempted(
    kind: str, jobs: list[Job], oracle: Oracle, reference: dict[str, list[Answer]], ledger: Ledger
) -> None:
    picked, num_blocks = scarcity(jobs, BLOCK)
    jobs = [jobs[index] for index in picked]
    settings = {"engine": {"num_blocks": num_blocks, **BOTH_CORES}}
    async with Mesh(engines=1, executor="torch", settings=settings) as mesh, mesh.async_client() as client:
        answers = await run_together(client, jobs)
    assert sum(answer.receipt.preemptions for answer in answers) > 0
    court = Court(oracle, [reference[kind][index] for index in picked])
    ledger(f"{kind} preempted", *court.judge(jobs, answers))


@both_kinds
async def test_moved_through_kills(kind: str, jobs: list[Job], court: Court, ledger: Ledger) -> None:
    async with Mesh(engines=2, executor="torch") as mesh, mesh.async_client() as client:
        kills = await run_through_kills(mesh, client, jobs, NUM_KILLS, seed=7)
    assert sum(answer.receipt.moves for answers in kills.answers for answer in answers) > 0
    verdicts = [court.judge(jobs, answers) for answers in kills.answers]
    tokens, ties = (sum(column) for column in zip(*verdicts, strict=True))
    ledger(f"{kind} through {kills.num_kills} kills in {kills.num_rounds} rounds", tokens, ties)


@both_kinds
async def test_scripted_logits_allow_nothing(
    kind: str, greedy_jobs: list[Job], seeded_jobs: list[Job], ledger: Ledger
) -> None:
    """Equal logits give equal tokens: no tie, no parting, whatever dies."""
    jobs = greedy_jobs if kind == "greedy" else seeded_jobs
    script = {"step_ms": 5}
    async with Mesh(engines=2, script=script) as mesh, mesh.async_client() as client:
        alone = await run_alone(client, jobs, cache_policy=CachePolicy.BYPASS)
        together = await run_together(client, jobs)
        kills = await run_through_kills(mesh, client, jobs, NUM_KILLS, seed=11)
    expected = [[choice.ids for choice in answer.choices] for answer in alone]
    for answers in (together, *kills.answers):
        assert [[choice.ids for choice in answer.choices] for answer in answers] == expected
    assert sum(answer.receipt.moves for answers in kills.answers for answer in answers) > 0
    ledger(
        f"{kind} scripted, through {kills.num_kills} kills", sum(map(len, chain.from_iterable(expected))), 0
    )
