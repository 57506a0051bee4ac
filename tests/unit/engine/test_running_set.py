"""The engine's core at lag 0 and 1: what is cached, who runs, who yields, and how every admit ends once."""

import random
from collections.abc import Callable

import pytest

from services.contract.priority import Priority
from services.engine.core.admission import CachePolicy, Ticket
from services.engine.core.outcome import EndReason, Refusal, ReturnReason, TicketFate
from services.engine.watchers import Watchers
from tests.support.engine_driver import BOOT, VOCAB, EngineDriver

MakeDriver = Callable[..., EngineDriver]
Oracle = Callable[..., list[int]]


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


# --- prefix reuse


@pytest.mark.parametrize(
    ("length", "cached"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32)]
)
def test_a_second_request_finds_all_full_blocks_but_never_its_last_id(
    make_driver: MakeDriver, length: int, cached: int
) -> None:
    driver = make_driver()
    first = driver.output(prompt(length), 1)
    rows_before = driver.num_rows
    handle = driver.admit(prompt(length), 1)
    driver.drain()
    told = driver.told[handle]
    assert rows_before == length
    assert told.ids == first
    assert told.progress is not None and told.progress.num_cached_tokens == cached
    assert driver.num_rows - rows_before == length - cached


def test_twins_that_arrive_together_are_one_prefill(make_driver: MakeDriver, oracle: Oracle) -> None:
    driver = make_driver(num_blocks=300)
    handles = [driver.admit(prompt(100), 4, choice=n, temperature=1.0, seed=7) for n in range(32)]
    driver.drain()
    for n, handle in enumerate(handles):
        assert driver.told[handle].ids == oracle(prompt(100), 4, choice=n, temperature=1.0, seed=7)
    # The first computes all; each other only what follows the last full block, and all decode three rows.
    assert driver.num_rows == 100 + 31 * 4 + 32 * 3


def test_an_owner_that_is_cancelled_leaves_its_twin_the_rest(make_driver: MakeDriver, oracle: Oracle) -> None:
    driver = make_driver(num_blocks=200, chunk_tokens=64, max_batch_tokens=64)
    first = driver.admit(prompt(2000), 4)
    second = driver.admit(prompt(2000), 4)
    for _ in range(5):
        driver.step()
    driver.cancel(first)
    driver.drain()
    ended = driver.told[first].ended
    assert ended is not None and ended.reason is EndReason.CANCELLED
    assert driver.told[second].ids == oracle(prompt(2000), 4)
    assert driver.output(prompt(2000), 4) == oracle(prompt(2000), 4)


def test_a_salt_of_another_tenant_finds_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.output(prompt(64), 1, salt=b"a")
    for salt, cached in ((b"b", 0), (b"a", 48)):
        handle = driver.admit(prompt(64), 1, salt=salt)
        driver.drain()
        progress = driver.told[handle].progress
        assert progress is not None and progress.num_cached_tokens == cached


def test_cache_policies_read_and_add_as_they_say(make_driver: MakeDriver) -> None:
    driver = make_driver()

    def cached(policy: CachePolicy) -> int:
        handle = driver.admit(prompt(64), 1, policy=policy)
        driver.drain()
        progress = driver.told[handle].progress
        assert progress is not None
        return progress.num_cached_tokens

    assert [cached(CachePolicy.BYPASS), cached(CachePolicy.READ_ONLY), cached(CachePolicy.USE)] == [0, 0, 0]
    assert [cached(CachePolicy.USE), cached(CachePolicy.READ_ONLY), cached(CachePolicy.BYPASS)] == [48, 48, 0]


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 64, 300])
def test_chunks_change_nothing(make_driver: MakeDriver, oracle: Oracle, chunk: int) -> None:
    driver = make_driver(chunk_tokens=chunk)
    assert driver.output(prompt(200), 20, temperature=1.0, seed=3) == oracle(
        prompt(200), 20, temperature=1.0, seed=3
    )


def test_output_blocks_serve_the_next_turn(make_driver: MakeDriver) -> None:
    driver = make_driver()
    output = driver.output(prompt(20), 30)
    handle = driver.admit([*prompt(20), *output, 1, 2, 3], 1)
    driver.drain()
    progress = driver.told[handle].progress
    # 49 positions were computed: the last id drawn never ran.
    assert progress is not None and progress.num_cached_tokens == 48


def test_a_row_that_is_not_finite_ends_alone_and_leaves_nothing_in_the_cache(make_driver: MakeDriver) -> None:
    driver = make_driver({"prompt_ids": prompt(40), "nan_at": 20})
    good = driver.admit(prompt(40, seed=1), 30)
    bad = driver.admit(prompt(40), 30)
    driver.drain()
    ended = driver.told[bad].ended
    assert ended is not None and ended.reason is EndReason.BAD_LOGITS and len(driver.told[bad].ids) == 20
    assert len(driver.told[good].ids) == 30
    again = driver.admit([*prompt(40), 5], 1)
    driver.drain()
    progress = driver.told[again].progress
    assert progress is not None and progress.num_cached_tokens == 0


# --- ends


def test_ids_that_are_an_end_already_need_no_step(make_driver: MakeDriver) -> None:
    driver = make_driver()
    stopped = driver.admit([*prompt(4), 9, 8], num_prompt_tokens=4, stop_ids=frozenset({8}))
    full = driver.admit([*prompt(4), 9, 7], 2, num_prompt_tokens=4)
    prompt_ends_in_stop = driver.admit([*prompt(4), 8], 1, stop_ids=frozenset({8}))
    assert driver.told[stopped].ended is not None and driver.told[full].ended is not None
    assert driver.told[stopped].ended.reason is EndReason.STOP
    assert driver.told[full].ended.reason is EndReason.LENGTH
    assert driver.num_steps == 0 and driver.told[prompt_ends_in_stop].ended is None
    driver.drain()
    assert len(driver.told[prompt_ends_in_stop].ids) == 1


def test_a_stop_id_ends_and_late_draws_are_dropped(make_driver: MakeDriver, lag: int) -> None:
    driver = make_driver({"output_ids": [5, 6, 7, 8, 9]})
    handle = driver.admit(prompt(20), 50, stop_ids=frozenset({7}))
    driver.drain()
    told = driver.told[handle]
    assert told.ids == [5, 6, 7]
    assert told.ended is not None and told.ended.reason is EndReason.STOP
    assert driver.set.totals.tokens_discarded == lag


def test_several_ids_per_step_end_at_the_limit(make_driver: MakeDriver) -> None:
    driver = make_driver({"output_ids": list(range(60)), "ids_per_step": 25})
    handle = driver.admit(prompt(16), 60)
    driver.drain()
    told = driver.told[handle]
    assert told.ids == list(range(60)) and told.ended is not None
    assert told.ended.reason is EndReason.LENGTH and driver.num_steps == 3
    assert driver.output([*prompt(16), *range(60)], 5) == driver.output(
        [*prompt(16), *range(60)], 5, policy=CachePolicy.BYPASS
    )


def test_stops_before_min_tokens_do_not_count(make_driver: MakeDriver) -> None:
    driver = make_driver({"output_ids": [7, 7, 7, 7, 7]})
    assert driver.output(prompt(3), 9, stop_ids=frozenset({7}), min_tokens=2) == [7, 7, 7]


def test_a_deadline_ends_a_sequence(make_driver: MakeDriver) -> None:
    driver = make_driver()
    handle = driver.admit(prompt(20), 1000, time_left_us=50_000)
    driver.drain()
    told = driver.told[handle]
    assert told.ended is not None and told.ended.reason is EndReason.DEADLINE
    assert 45 <= len(told.ids) <= 50


# --- attempts


def test_a_higher_attempt_supersedes_and_a_lower_or_equal_one_is_stale(make_driver: MakeDriver) -> None:
    driver = make_driver()
    first = driver.admit(prompt(20), 50, request_id="a", attempt=(1, 1))
    driver.step()
    second = driver.admit(prompt(20), 50, request_id="a", attempt=(1, 2))
    ended = driver.told[first].ended
    assert ended is not None and ended.reason is EndReason.CANCELLED
    for attempt in ((1, 1), (1, 2)):
        stale = driver.told[driver.admit(prompt(20), 50, request_id="a", attempt=attempt)].refused
        assert stale is not None and stale.refusal is Refusal.STALE
    third = driver.admit(prompt(20), 5, request_id="a", attempt=(2, 1))
    driver.drain()
    assert driver.told[second].num_ends == 1 and len(driver.told[third].ids) == 5


def test_attempts_are_remembered_for_a_minute_after_the_end(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.output(prompt(5), 1, request_id="a")
    driver.now_us += 59_000_000
    late = driver.told[driver.admit(prompt(5), 1, request_id="a")].refused
    assert late is not None and late.refusal is Refusal.STALE
    driver.now_us += 2_000_000
    driver.step()
    assert driver.output(prompt(5), 1, request_id="a") != []


def test_choices_are_identities_of_their_own(make_driver: MakeDriver) -> None:
    driver = make_driver()
    handles = [driver.admit(prompt(5), 3, request_id="a", choice=n) for n in range(3)]
    driver.drain()
    assert all(driver.told[handle].ended is not None for handle in handles)


def test_another_boot_and_a_drain_are_refused(make_driver: MakeDriver) -> None:
    driver = make_driver()
    other = driver.told[driver.admit(prompt(5), ticket=Ticket("s", 1, "gone", 1, 1))].refused
    assert other is not None and other.refusal is Refusal.WRONG_BOOT
    running = driver.admit(prompt(5), 3)
    driver.set.start_drain()
    late = driver.told[driver.admit(prompt(5))].refused
    assert late is not None and late.refusal is Refusal.DRAINING
    driver.drain()
    assert len(driver.told[running].ids) == 3


def test_a_broken_stream_takes_its_sequences_along_but_not_their_blocks(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.admit(prompt(40), 100, stream_id=1)
    other = driver.admit(prompt(40, seed=1), 5, stream_id=2)
    driver.step()
    driver.step()
    driver.set.drop_stream(1, driver.now_us)
    driver.set.check()
    assert [it.admission.stream_id for it in driver.set.roster.live()] == [2]
    driver.drain()
    assert len(driver.told[other].ids) == 5
    handle = driver.admit(prompt(40), 1)
    driver.drain()
    progress = driver.told[handle].progress
    assert progress is not None and progress.num_cached_tokens == 32


def test_tickets_are_named_when_met_and_when_over(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.admit(prompt(5), 2, ticket=Ticket("s", 1, BOOT, 1, 1))
    driver.admit(prompt(5), 2, ticket=Ticket("s", 2, "gone", 1, 1))
    driver.drain()
    fates = [(met.number, met.fate) for met in driver.set.news.take_tickets()]
    assert fates == [(1, TicketFate.ADMITTED), (2, TicketFate.REFUSED), (1, TicketFate.ENDED)]


def test_tickets_that_no_scheduler_hears_of_are_not_kept(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.admit(prompt(5), 2, ticket=Ticket("s", 1, BOOT, 1, 1))
    Watchers(driver.set, lambda: 0.0).note_change()
    assert driver.set.news.take_tickets() == []


# --- who runs


def test_a_prompt_that_no_block_count_can_hold_is_not_in_the_way(make_driver: MakeDriver) -> None:
    driver = make_driver(num_blocks=65, max_sequences=32)
    big = driver.told[driver.admit(prompt(1500), 1)].refused
    assert big is not None and big.refusal is Refusal.NO_ROOM
    handles = [driver.admit(prompt(10, seed=n), 4) for n in range(20)]
    driver.drain()
    assert all(len(driver.told[handle].ids) == 4 for handle in handles)


def test_a_higher_class_takes_a_slot_within_two_steps_and_the_victim_comes_back_unchanged(
    make_driver: MakeDriver, oracle: Oracle
) -> None:
    driver = make_driver(num_blocks=600, max_sequences=2)
    low = [driver.admit(prompt(2000, seed=n), 30, priority=Priority.BATCH) for n in range(2)]
    for _ in range(12):
        driver.step()
    high = driver.admit(prompt(20, seed=9), 5, priority=Priority.REALTIME)
    driver.step()
    driver.step()
    assert any(row.start == 0 and len(row.chunk_ids) == 20 for rows in driver.rows[-2:] for row in rows)
    driver.drain()
    assert len(driver.told[high].ids) == 5
    assert [driver.told[handle].ids for handle in low] == [oracle(prompt(2000, seed=n), 30) for n in range(2)]
    ends = [driver.told[handle].ended for handle in low]
    assert [end.counts.num_preemptions for end in ends if end] == [0, 1]


def test_equal_classes_never_take_slots_from_each_other(make_driver: MakeDriver) -> None:
    driver = make_driver(num_blocks=300, max_sequences=2)
    handles = [driver.admit(prompt(20, seed=n), 20) for n in range(4)]
    refused = [driver.told[handle].refused for handle in handles]
    assert [it.refusal if it else None for it in refused] == [None, None, Refusal.NO_ROOM, Refusal.NO_ROOM]
    driver.drain()
    assert driver.set.totals.preemptions == 0


def test_block_shortage_preempts_the_youngest_of_the_lowest_class_and_loses_no_token(
    make_driver: MakeDriver, oracle: Oracle
) -> None:
    driver = make_driver(num_blocks=31, max_sequences=8)
    classes = [Priority.BATCH, Priority.INTERACTIVE, Priority.REALTIME]
    waiting = {n: (prompt(40, seed=n), classes[n % 3]) for n in range(8)}
    outputs: dict[int, list[int]] = {n: [] for n in waiting}
    handles: dict[int, int] = {}
    attempt = 1
    while waiting or handles:
        for n, (ids, priority) in list(waiting.items()):
            if n not in handles:
                known = [*ids, *outputs[n]]
                handles[n] = driver.admit(
                    known,
                    150,
                    num_prompt_tokens=40,
                    request_id=f"q{n}",
                    attempt=(1, attempt),
                    priority=priority,
                )
                attempt += 1
        driver.step()
        driver.now_us += 20_000
        for n, handle in list(handles.items()):
            told = driver.told[handle]
            if told.num_ends:
                outputs[n] += told.ids
                del handles[n]
                if told.ended is not None:
                    del waiting[n]
        assert attempt < 20_000
    assert driver.set.totals.preemptions > 0
    for n in range(8):
        assert outputs[n] == oracle(prompt(40, seed=n), 150), n
    totals = driver.set.totals
    assert totals.tokens_recomputed < totals.tokens_computed / 2


def test_a_preempted_sequence_is_returned_after_a_second_without_a_step(make_driver: MakeDriver) -> None:
    driver = make_driver(max_sequences=1, num_blocks=200)
    low = driver.admit(prompt(20), 1000, priority=Priority.BATCH)
    driver.step()
    driver.admit(prompt(20, seed=1), 1500, priority=Priority.REALTIME)
    while driver.told[low].returned is None:
        driver.step()
    returned = driver.told[low].returned
    assert returned.reason is ReturnReason.NO_STEP and returned.counts.num_preemptions == 1
    assert 1_000_000 <= driver.now_us - 1_000_000 <= 1_020_000


def test_running_streams_never_wait_for_more_than_one_chunk(make_driver: MakeDriver) -> None:
    driver = make_driver(num_blocks=600, chunk_tokens=64)
    stream = driver.admit(prompt(10), 200)
    driver.step()
    driver.step()
    for n in range(3):
        driver.admit(prompt(1000, seed=n + 1), 1)
    before = len(driver.rows)
    for _ in range(20):
        driver.step()
    decoding = driver.set.roster.by_handle(1, stream)
    assert decoding is not None
    for rows in driver.rows[before:]:
        assert any(row.sequence_id == decoding.sequence_id for row in rows)
        assert sum(len(row.chunk_ids) for row in rows) <= 64 + len(rows)


def test_members_of_a_batch_start_together_or_after_five_milliseconds(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.admit(prompt(10), 3, ticket=Ticket("s", 1, BOOT, 7, 2))
    assert not driver.step()
    driver.now_us += 2_000
    driver.admit(prompt(10, seed=1), 3, ticket=Ticket("s", 2, BOOT, 7, 2))
    driver.step()
    assert len(driver.rows[0]) == 2
    driver.drain()
    driver.admit(prompt(10, seed=2), 3, ticket=Ticket("s", 3, BOOT, 8, 2))
    assert not driver.step()
    driver.now_us += 5_000
    assert driver.step()


def test_an_empty_engine_admits_up_to_the_pool_and_a_busy_one_keeps_its_reserve(
    make_driver: MakeDriver,
) -> None:
    driver = make_driver(num_blocks=65)
    whole = driver.admit(prompt(1000), 24)
    assert driver.told[whole].refused is None
    driver.drain()
    assert len(driver.told[whole].ids) == 24
    driver.admit(prompt(16, seed=1), 500)
    driver.step()
    refused = driver.told[driver.admit(prompt(930, seed=2), 1)].refused
    assert refused is not None and refused.refusal is Refusal.NO_ROOM


# --- faults


def test_a_step_that_raises_returns_all_its_rows_and_suspects_then_run_alone(
    make_driver: MakeDriver, oracle: Oracle
) -> None:
    driver = make_driver({"prompt_ids": prompt(20), "raise_at": 3})
    bad = driver.admit(prompt(20), 10, request_id="bad")
    good = [driver.admit(prompt(20, seed=n), 10, request_id=f"good{n}") for n in (1, 2)]
    while driver.told[bad].returned is None:
        driver.step()
    for handle in (bad, *good):
        returned = driver.told[handle].returned
        assert returned is not None and returned.reason is ReturnReason.SUSPECT
    known = {handle: driver.told[handle].ids for handle in (bad, *good)}
    again = {"num_prompt_tokens": 20, "attempt": (1, 2), "is_suspect": True}
    bad2 = driver.admit([*prompt(20), *known[bad]], 10, request_id="bad", **again)
    good2 = [
        driver.admit([*prompt(20, seed=n), *known[handle]], 10, request_id=f"good{n}", **again)
        for n, handle in zip((1, 2), good, strict=True)
    ]
    driver.drain()
    assert driver.told[bad2].returned is not None
    for n, before, handle in zip((1, 2), good, good2, strict=True):
        assert driver.told[handle].ended is not None
        assert known[before] + driver.told[handle].ids == oracle(prompt(20, seed=n), 10)


@pytest.mark.parametrize("delay", range(6))
def test_nothing_is_lost_where_a_following_step_never_ran(
    make_driver: MakeDriver, oracle: Oracle, delay: int
) -> None:
    driver = make_driver({"prompt_ids": prompt(20), "raise_at": 3})
    bad = driver.admit(prompt(20), 10)
    for _ in range(delay):
        driver.step()
    late = driver.admit(prompt(40, seed=1), 10)
    driver.drain()
    told = driver.told[late]
    assert driver.told[bad].returned is not None
    assert told.ids == oracle(prompt(40, seed=1), 10)[: len(told.ids)]
    assert (told.returned is not None) or len(told.ids) == 10


# --- accounting


def test_blocks_return_to_the_start_after_many_requests(make_driver: MakeDriver) -> None:
    driver = make_driver(num_blocks=65)
    rng = random.Random(5)
    for number in range(150):
        length, limit = rng.randint(1, 48), rng.choice((1, 15, 16, 17))
        driver.admit(prompt(length, seed=number % 40), limit)
        if number % 5 == 4:
            driver.drain()
    driver.drain()
    pool = driver.set.cache.pool
    assert pool.num_used == 0 and pool.num_free + pool.num_cached == pool.num_total


def test_counts_stay_true_under_preemption_with_several_choices(
    make_driver: MakeDriver, oracle: Oracle
) -> None:
    driver = make_driver(num_blocks=45)
    for round_number in range(3):
        handles = [
            driver.admit(prompt(500), 60, request_id=f"n{round_number}", choice=n, temperature=1.0, seed=1)
            for n in range(4)
        ]
        driver.drain()
        for n, handle in enumerate(handles):
            told = driver.told[handle]
            end = told.ended or told.returned
            assert end is not None, told
            assert 0 <= end.counts.num_cached_tokens <= 499
            assert end.counts.num_recomputed_tokens <= end.counts.num_computed_tokens
            expected = oracle(prompt(500), 60, choice=n, temperature=1.0, seed=1)
            assert told.ids == expected[: len(told.ids)]
            assert told.returned is not None or len(told.ids) == 60
    assert driver.set.totals.preemptions > 0


def test_a_survivor_is_untouched_while_the_pool_overflows_and_streams_are_cancelled(
    make_driver: MakeDriver, oracle: Oracle
) -> None:
    driver = make_driver(num_blocks=40, max_sequences=6)
    survivor = driver.admit(prompt(100), 200, priority=Priority.REALTIME)
    rng = random.Random(3)
    for round_number in range(50):
        victim = driver.admit(prompt(150, seed=round_number + 1), 300)
        for n in range(3):
            driver.admit(prompt(rng.randint(1, 40), seed=1000 + n), 4)
        for _ in range(4):
            driver.step()
        driver.cancel(victim)
    driver.drain()
    assert driver.told[survivor].ids == oracle(prompt(100), 200)
    assert driver.set.cache.pool.num_used == 0
