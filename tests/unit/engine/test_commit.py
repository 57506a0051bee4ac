"""What a step's commit makes true, and nothing before it: names in the index, ids up to the end, ends."""

from collections.abc import Callable

from services.contract.block_hash import block_hashes
from services.engine.core.outcome import EndReason
from tests.support.engine_driver import EngineDriver

MakeDriver = Callable[..., EngineDriver]
PROMPT = list(range(50))
NAMES = block_hashes(PROMPT, 16, b"tenant", "r")


def test_blocks_are_found_once_their_step_is_committed_and_not_before(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.admit(PROMPT, 8)
    plan = driver.set.plan(driver.now_us)
    assert plan is not None and plan.num_tokens == len(PROMPT)
    assert [driver.set.cache.lookup(name) for name in NAMES] == [None] * 3
    for spec in plan.added:
        driver.executor.add(spec)
    driver.set.commit(plan, driver.executor.run([planned.row for planned in plan.rows]), driver.now_us)
    assert [driver.set.cache.lookup(name) for name in NAMES] == list(plan.rows[0].row.block_ids[:3])


def test_a_twin_starts_after_the_commit_that_it_waits_for(make_driver: MakeDriver) -> None:
    driver = make_driver()
    first = driver.admit(PROMPT, 8)
    owner_plan = driver.set.plan(driver.now_us)
    assert owner_plan is not None
    twin = driver.set.roster.by_handle(1, driver.admit(PROMPT, 8))
    plan = driver.set.plan(driver.now_us)
    assert twin is not None
    assert plan is None or all(planned.sequence is not twin for planned in plan.rows)
    driver.cancel(first)
    plan = driver.set.plan(driver.now_us)
    assert plan is not None
    (row,) = [planned.row for planned in plan.rows if planned.sequence is twin]
    assert (row.start, len(row.chunk_ids)) == (0, len(PROMPT))


def test_blocks_of_a_step_that_raised_are_not_found(make_driver: MakeDriver) -> None:
    driver = make_driver({"prompt_ids": PROMPT, "raise_at": 0})
    handle = driver.admit(PROMPT, 8)
    driver.drain()
    assert driver.told[handle].returned is not None
    assert [driver.set.cache.lookup(name) for name in NAMES] == [None] * 3


def test_ids_after_the_end_in_one_step_are_discarded(make_driver: MakeDriver) -> None:
    driver = make_driver({"output_ids": [5, 6, 7, 8, 9], "ids_per_step": 5})
    handle = driver.admit(PROMPT[:16], 20, stop_ids=frozenset({7}))
    driver.drain()
    told = driver.told[handle]
    assert told.ids == [5, 6, 7]
    assert told.ended is not None and told.ended.reason is EndReason.STOP
    assert driver.set.totals.tokens_discarded >= 2


def test_tokens_after_a_cancel_are_not_told(make_driver: MakeDriver, lag: int) -> None:
    driver = make_driver()
    handle = driver.admit(PROMPT, 1000)
    for _ in range(5):
        driver.step()
    driver.cancel(handle)
    told = driver.told[handle]
    num_told = len(told.ids)
    driver.drain()
    assert told.ended is not None and told.ended.reason is EndReason.CANCELLED
    assert len(told.ids) == num_told and driver.set.totals.tokens_discarded == lag
    assert driver.set.cache.pool.num_used == 0
