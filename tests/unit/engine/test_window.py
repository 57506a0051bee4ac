"""Sliding windows: what no later position sees is given back while the sequence runs, and changes no id."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from services.engine.core.admission import CachePolicy
from services.engine.core.outcome import EndReason
from tests.support.engine_driver import VOCAB, EngineDriver, write_script

WINDOW = 40
CHUNK = 20
MOST_DECODING = 4
"""Blocks that 40 positions and the next one touch at most, the last passed only after its step's commit."""

MakeDriver = Callable[..., EngineDriver]


@pytest.fixture
def make_windowed(tmp_path: Path, lag: int) -> MakeDriver:
    def make(**limits: int) -> EngineDriver:
        script = write_script(tmp_path / "window.json", window=WINDOW)
        return EngineDriver(script, lag=lag, **{"chunk_tokens": CHUNK, **limits})

    return make


def ids_of(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCAB) for _ in range(count)]


def in_a_big_pool(make_windowed: MakeDriver, ids: list[int], num_output: int) -> list[int]:
    """By itself, in one chunk, without cache."""
    alone = make_windowed(num_blocks=300, chunk_tokens=2048)
    return alone.output(ids, num_output, policy=CachePolicy.BYPASS)


@pytest.mark.parametrize("policy", list(CachePolicy))
def test_a_running_sequence_holds_its_window_and_no_more(
    make_windowed: MakeDriver, policy: CachePolicy
) -> None:
    driver, ids = make_windowed(num_blocks=65), ids_of(1, 130)
    handle = driver.admit(ids, 200, policy=policy)
    while driver.step():
        (sequence, *_) = driver.set.roster.live() or [None]
        if sequence is not None:
            assert driver.set.cache.pool.num_used <= driver.limits.max_window_blocks
            if sequence.num_output > 5:
                assert driver.set.cache.pool.num_used <= MOST_DECODING
    assert driver.told[handle].ids == in_a_big_pool(make_windowed, ids, 200)


def test_what_a_chunk_in_flight_computes_is_passed_only_after_its_commit(make_windowed: MakeDriver) -> None:
    driver, ids = make_windowed(num_blocks=65, chunk_tokens=300), ids_of(10, 130)
    assert driver.output(ids, 60) == in_a_big_pool(make_windowed, ids, 60)
    handle = driver.admit(ids, 1)
    driver.drain()
    progress = driver.told[handle].progress
    assert progress is not None and progress.num_cached_tokens == 128


def test_a_sequence_may_grow_beyond_a_pool_that_holds_its_window(make_windowed: MakeDriver) -> None:
    driver, ids = make_windowed(num_blocks=10), ids_of(2, 200)
    handle = driver.admit(ids, 150)
    driver.drain()
    ended = driver.told[handle].ended
    assert ended is not None and ended.reason is EndReason.LENGTH and driver.set.totals.preemptions == 0
    assert driver.told[handle].ids == in_a_big_pool(make_windowed, ids, 150)


def test_what_was_passed_stays_cached_for_others(make_windowed: MakeDriver) -> None:
    driver, ids = make_windowed(num_blocks=65), ids_of(3, 160)
    first = driver.admit(ids, 100)
    for _ in range(40):
        driver.step()
    second = driver.admit(ids, 100)
    driver.drain()
    progress = driver.told[second].progress
    assert progress is not None and progress.num_cached_tokens == 144
    assert driver.told[second].ids == driver.told[first].ids == in_a_big_pool(make_windowed, ids, 100)


def test_blocks_that_are_hit_and_lie_behind_the_window_are_not_kept(make_windowed: MakeDriver) -> None:
    driver, ids = make_windowed(num_blocks=65), ids_of(4, 480)
    driver.output(ids, 1)
    driver.admit(ids, 50)
    driver.step()
    assert driver.set.cache.pool.num_used <= MOST_DECODING


def test_preempted_and_taken_up_again_it_draws_the_same(make_windowed: MakeDriver) -> None:
    driver = make_windowed(num_blocks=12)
    prompts = [ids_of(seed, 30) for seed in range(5, 8)]
    handles = [driver.admit(ids, 120) for ids in prompts]
    driver.drain()
    assert driver.set.totals.preemptions > 0
    for handle, ids in zip(handles, prompts, strict=True):
        assert (
            driver.told[handle].ids == in_a_big_pool(make_windowed, ids, 120)[: len(driver.told[handle].ids)]
        )


def test_an_admission_needs_room_for_a_window_not_for_all_its_ids(make_windowed: MakeDriver) -> None:
    driver = make_windowed(num_blocks=31)
    driver.admit(ids_of(8, 20), 100)
    driver.step()
    handle = driver.admit(ids_of(9, 900), 5)
    assert driver.told[handle].refused is None
    driver.drain()
    assert driver.told[handle].ids == in_a_big_pool(make_windowed, ids_of(9, 900), 5)
