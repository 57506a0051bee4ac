"""Small pure edges: shares of room, the step clock, attempts, memory, declaration, a step in columns."""

from collections import Counter

import pytest

from pagemesh.v1 import engine_pb2, generation_pb2
from services.contract.priority import Priority
from services.engine.core.limits import Limits
from services.engine.core.outcome import Counts, Ended, EndReason, NewIds, StreamNews
from services.engine.core.roster import Roster
from services.engine.core.sequence import TRANSITIONS, State
from services.engine.declaration import declare, fingerprint_hash, fingerprint_of, tier_of
from services.engine.memory import TooLittleMemoryError, check_memory, pool_size
from services.engine.room import Turn, divide
from services.engine.run_words import StepTimes, run_response
from services.engine.step import DrawnLogprobs, ExecutorSpec
from services.engine.step_clock import StepClock

SPEC = ExecutorSpec("torch", "float32", "float32", "reference", "cpu/x86_64", 100, 512, False, 1024)


@pytest.mark.parametrize(
    ("room", "num_parts", "parts"), [(7, 1, [7]), (1, 2, [1, 0]), (10, 3, [4, 3, 3]), (0, 2, [0, 0])]
)
def test_equal_parts_sum_to_the_room(room: int, num_parts: int, parts: list[int]) -> None:
    assert divide(room, num_parts) == parts and sum(parts) == room


def test_a_turn_stays_while_its_holders_work_waits() -> None:
    turn = Turn()
    assert turn.holder({}) is None
    assert turn.holder({2: 5}) == 2
    assert turn.holder({1: 100, 2: 1}) == 2
    assert turn.holder({1: 100}) == 1
    assert turn.holder({}) is None


def test_turns_pass_on_in_proportion_to_the_work_and_reach_everybody() -> None:
    turn, held = Turn(), Counter[int | None]()
    for _ in range(60):
        turn.pass_on({1: 1, 2: 3, 3: 16})
        held[turn.holder({1: 1, 2: 3, 3: 16})] += 1
    assert held == {1: 3, 2: 9, 3: 48}


def test_a_step_is_overdue_after_ten_seconds_or_five_times_its_prediction() -> None:
    clock = StepClock()
    clock.start(100, 0)
    assert not clock.is_overdue(10_000_000) and clock.is_overdue(10_000_001)
    clock.end(4_000_000, 4_000_000)
    assert not clock.is_overdue(99_000_000)
    clock.start(200, 5_000_000)
    clock.start(1, 5_000_000)
    assert clock.predicted_us(200) == 8_000_000
    assert not clock.is_overdue(45_000_000) and clock.is_overdue(45_000_001)
    clock.end(0, 50_000_000)
    assert not clock.is_overdue(60_000_000)


def test_no_state_follows_an_end() -> None:
    assert TRANSITIONS[State.ENDED] == TRANSITIONS[State.RETURNED] == set()
    assert set(TRANSITIONS) == set(State)


def test_slots_of_lower_classes_are_room_for_higher_ones() -> None:
    roster = Roster(4)
    roster._num_live.update({Priority.BATCH: 3, Priority.INTERACTIVE: 1})
    rooms = [roster.free_slots(priority) for priority in Priority]
    assert rooms == [4, 3, 0]


def test_the_pool_is_as_told_or_what_fits_and_can_be_used() -> None:
    assert pool_size(77, 1, 10**9, 4, 4) == 77
    assert pool_size(0, 1, 1024, 64, 512) == 1024
    assert pool_size(0, 1024, 1024, 4, 4) == 17
    with pytest.raises(TooLittleMemoryError, match="raise it"):
        pool_size(0, 1, 2**20, 4, 4)
    with pytest.raises(TooLittleMemoryError, match=r"needs 3 MiB; 2 MiB are available"):
        check_memory("it", 3 * 2**20, 2 * 2**20)


def test_a_fingerprint_depends_on_all_that_decides_numbers_and_the_tier_on_what_is_promised() -> None:
    other = ExecutorSpec(
        "torch", "bfloat16", "bfloat16", "attention=reference", "cpu/x86_64", 100, 512, False, 1
    )
    first, second = fingerprint_of(SPEC, "r1"), fingerprint_of(SPEC, "r2")
    hashes = {
        fingerprint_hash(first),
        fingerprint_hash(second),
        fingerprint_hash(fingerprint_of(other, "r1")),
    }
    assert len(hashes) == 3 and fingerprint_hash(first) == fingerprint_hash(fingerprint_of(SPEC, "r1"))
    assert tier_of(SPEC) == generation_pb2.EXACTNESS_TIER_SAME_TOKENS
    assert tier_of(other) == generation_pb2.EXACTNESS_TIER_CONTINUED
    info = declare(
        engine_id="e",
        boot_id="b",
        address="a:1",
        model="m",
        revision="r1",
        spec=SPEC,
        limits=Limits(num_blocks=65, vocab_size=100),
    )
    assert (info.max_pool_tokens, info.vocab_size, info.fingerprint_hash) == (
        1024,
        100,
        fingerprint_hash(first),
    )


def test_a_step_is_columns_and_rows_without_logprobs_count_none() -> None:
    logprobs = (DrawnLogprobs((5, 9), (-0.5, -1.0)), DrawnLogprobs((6,), (-0.25,)))
    news = StreamNews(
        new_ids=[NewIds(1, 2, 0, (4,), None), NewIds(3, 1, 7, (5, 6), logprobs)],
        ended=[Ended(1, EndReason.LENGTH, Counts(16, 20, 3, 1))],
    )
    step = run_response(news, StepTimes(9, 100, 50)).step
    assert (step.handles, step.attempts, step.first_output_indexes) == ([1, 3], [2, 1], [0, 7])
    assert (step.num_ids, step.ids) == ([1, 2], [4, 5, 6])
    assert (step.num_logprobs, step.logprob_ids) == ([0, 2, 1], [5, 9, 6])
    assert list(step.logprobs) == [-0.5, -1.0, -0.25] and step.step_number == 9
    plain = StreamNews(new_ids=[NewIds(1, 2, 0, (4,), None)])
    assert not run_response(plain, StepTimes(1, 1, 1)).step.num_logprobs
    ended = run_response(news, StepTimes(1, 1, 1)).ended[0]
    assert (ended.reason, ended.counts.num_recomputed_tokens) == (engine_pb2.END_REASON_LENGTH, 3)
