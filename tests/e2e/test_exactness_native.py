"""The bit-identical tier: with the native executor, ids and log-probabilities are the same whatever happens.

No tie and no parting is allowed. An eighth of the matrix by default; all of it with PAGEMESH_EXACTNESS=full.
The torch executor's matrix, which the fp32 oracle judges, is test_exactness.py.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pagemesh.events import Answer, ExactnessTier
from pagemesh.request import CachePolicy, Options
from services.contract.model_folder import resolve_model
from services.engine.native.build import NativeUnavailableError, find_library
from tests.support.ledger import Ledger
from tests.support.mesh import Mesh
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

IS_FULL = os.environ.get("PAGEMESH_EXACTNESS") == "full"
CHUNKS = (1, 15, 16, 17, 64, 300) if IS_FULL else (17,)
MAX_LENGTH = {1: 200}
"""A chunk of one is a step per token."""
NUM_KILLS = 8 if IS_FULL else 2
NUM_SEEDED = 8 if IS_FULL else 1
BOTH_CORES = {"num_threads": 2}
Settings = dict[str, str | int]
FORMATS: dict[str, Settings] = {
    "plain": {},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
    "int8 and KV int8": {"weights": "int8", "kv_dtype": "int8"},
}
"""Of weights and KV."""
in_all_formats = pytest.mark.parametrize(
    "format_name", list(FORMATS) if IS_FULL else ["plain", "int8 and KV int8"], scope="module"
)
in_main_formats = pytest.mark.parametrize(
    "format_name", ["plain", "int8"] if IS_FULL else ["plain"], scope="module"
)
BLOCK = 16


def _why_not() -> str:
    try:
        find_library()
    except NativeUnavailableError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.exactness, pytest.mark.skipif(bool(_why_not()), reason=_why_not())]


@pytest.fixture(scope="module")
def model_folder() -> Path:
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def jobs(model_folder: Path) -> list[Job]:
    """Greedy ones and seeded ones of three choices; each asks for the log-probability of what was drawn."""
    picked = prompts(model_folder) if IS_FULL else prompts(model_folder)[5::8]
    step = len(LENGTHS) // NUM_SEEDED
    drawn = [
        seeded(ids, seed=1000 + index) for index, ids in enumerate(prompts(model_folder)[step // 2 :: step])
    ]
    return [_with_logprobs(job) for job in (*(greedy(ids) for ids in picked), *drawn)]


def _with_logprobs(job: Job) -> Job:
    return replace(job, options=Options(**{**job.options, "logprobs": 0}))  # type: ignore[typeddict-item]


@pytest.fixture(scope="module")
def formats(format_name: str) -> Settings:
    return FORMATS[format_name]


@pytest.fixture(scope="module")
def mesh(formats: Settings) -> Iterator[Mesh]:
    with Mesh(engines=1, executor="native", settings={"engine": BOTH_CORES | formats}) as running:
        yield running


@pytest.fixture(scope="module")
def reference(mesh: Mesh, jobs: list[Job]) -> list[Answer]:
    """Every job alone and cold."""

    async def run() -> list[Answer]:
        async with mesh.async_client() as client:
            return await run_alone(client, jobs, cache_policy=CachePolicy.BYPASS)

    return asyncio.run(run())


def assert_equal(answers: Sequence[Answer], expected: Sequence[Answer]) -> int:
    """Ids and log-probabilities, to the bit; gives the number of tokens."""
    num_tokens = 0
    for answer, known in zip(answers, expected, strict=True):
        for choice, known_choice in zip(answer.choices, known.choices, strict=True):
            assert len(choice.logprobs) == len(choice.ids) == NUM_OUTPUT_TOKENS
            assert choice.ids == known_choice.ids
            assert choice.logprobs == known_choice.logprobs
            num_tokens += len(choice.ids)
    return num_tokens


@in_all_formats
async def test_together_and_warm(
    format_name: str, mesh: Mesh, jobs: list[Job], reference: list[Answer], ledger: Ledger
) -> None:
    async with mesh.async_client() as client:
        cold = await run_together(client, jobs, cache_policy=CachePolicy.BYPASS)
        await run_together(client, jobs)
        warm = await run_together(client, jobs)
    ledger(f"native {format_name} together", assert_equal(cold, reference), 0)
    ledger(f"native {format_name} warm", assert_equal(warm, reference), 0)
    assert {answer.receipt.tier for answer in (*reference, *cold, *warm)} == {ExactnessTier.BIT_IDENTICAL}
    for job, answer in zip(jobs, warm, strict=True):
        assert answer.usage.cached_tokens == BLOCK * ((len(job.prompt_ids) - 1) // BLOCK)


@in_main_formats
async def test_preempted(
    format_name: str, formats: Settings, jobs: list[Job], reference: list[Answer], ledger: Ledger
) -> None:
    picked, num_blocks = scarcity(jobs, BLOCK)
    settings = {"engine": {"num_blocks": num_blocks, **BOTH_CORES, **formats}}
    async with Mesh(engines=1, executor="native", settings=settings) as mesh, mesh.async_client() as client:
        answers = await run_together(client, [jobs[index] for index in picked])
    assert sum(answer.receipt.preemptions for answer in answers) > 0
    known = [reference[index] for index in picked]
    ledger(f"native {format_name} preempted", assert_equal(answers, known), 0)


@in_main_formats
@pytest.mark.parametrize("chunk", CHUNKS)
async def test_chunked_and_moved_through_kills(
    chunk: int,
    format_name: str,
    formats: Settings,
    jobs: list[Job],
    reference: list[Answer],
    ledger: Ledger,
) -> None:
    """Two engines of one thread each, against a reference that two threads computed."""
    limit = MAX_LENGTH.get(chunk, max(LENGTHS))
    picked = [index for index, job in enumerate(jobs) if len(job.prompt_ids) <= limit]
    known = [reference[index] for index in picked]
    settings = {"engine": {"num_threads": 1, "chunk_tokens": chunk, **formats}}
    async with Mesh(engines=2, executor="native", settings=settings) as mesh, mesh.async_client() as client:
        kills = await run_through_kills(
            mesh, client, [jobs[index] for index in picked], NUM_KILLS, seed=chunk
        )
    assert sum(answer.receipt.moves for answers in kills.answers for answer in answers) > 0
    num_tokens = sum(assert_equal(answers, known) for answers in kills.answers)
    ledger(f"native {format_name} in chunks of {chunk}, {kills.num_kills} kills", num_tokens, 0)
