"""What `make kv` computes without a model."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.kv import stall
from bench.kv.contiguous import SlotRanges
from bench.kv.trace import MAX_OUTPUT, make_trace
from bench.kv.utilization import BAR_RATIO, BAR_SHARE, measure


def test_ranges_are_first_fit_and_join_again() -> None:
    ranges = SlotRanges(10)
    first, second, third = ranges.take(4), ranges.take(4), ranges.take(2)
    assert (first, second, third) == (0, 4, 8)
    assert ranges.take(1) is None
    ranges.give_back(0, 4)
    assert ranges.take(5) is None
    ranges.give_back(4, 4)
    assert ranges.take(6) == 0
    assert ranges.take(2) == 6


def test_a_seed_repeats_the_trace() -> None:
    trace = make_trace(2_000)
    assert trace == make_trace(2_000) != make_trace(2_000, seed=1)
    short = sum(it.num_prompt <= 64 for it in trace) / len(trace)
    assert 0.55 < short < 0.65
    assert {it.num_prompt for it in trace} <= set(range(1, 1025))
    assert max(it.num_output for it in trace) == MAX_OUTPUT


def test_paging_uses_the_memory_that_contiguous_ranges_leave_empty() -> None:
    paged, coarse, exact, asked, longest = measure(num_requests=600)
    assert paged.share_of_taken > BAR_SHARE
    assert coarse.share_of_taken < paged.share_of_taken
    assert longest.share_of_pool < asked.share_of_pool < exact.share_of_pool < paged.share_of_pool
    assert paged.num_sequences > 0.9 * BAR_RATIO * longest.num_sequences
    assert paged.preemptions == 0


class FailingClient:
    """Its streams break before their first token."""

    async def generate(self, prompt: object, **options: object) -> AsyncIterator[object]:
        await asyncio.sleep(0)
        raise ConnectionError("gone")
        yield


async def test_a_stream_that_fails_ends_the_wait_for_the_others() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(stall._arrival(FailingClient(), 0), 5)
    assert {str(error) for error in caught.value.exceptions} == {"gone"}
