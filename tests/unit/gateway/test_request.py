"""The life of one request: fencing, moves, crash cap, resume, choices, limits, withdrawals, the one end."""

import json
import string
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

import pytest

from services.contract.errors import MeshError, Reason
from services.gateway.life.choice import Phase
from services.gateway.life.hop_clock import HopClock, Stage
from services.gateway.life.request import CRASH_LIMIT, SETTLE_S, RequestLife
from services.gateway.life.request_words import (
    Admit,
    AdmitRefusal,
    Cancel,
    ChoiceLogprobs,
    Command,
    Complete,
    Counts,
    EmitTokens,
    EndCause,
    EngineFacts,
    Enqueue,
    Fail,
    Placement,
    PlaceRefusal,
    RequestSpec,
    ReturnCause,
    Ticket,
    Tier,
    Withdraw,
)
from services.gateway.spec.generation_spec import FinishReason
from services.gateway.text.detokenizer import TokenTable
from services.gateway.text.output_text import OutputRules, OutputText

Kind = TypeVar("Kind")
LETTERS = string.ascii_lowercase
STOP_ID = 26
TABLE = TokenTable.from_definition(
    json.dumps(
        {
            "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(LETTERS)}},
            "added_tokens": [{"id": STOP_ID, "content": "<end>", "special": True}],
            "decoder": {"type": "ByteLevel"},
        }
    ).encode()
)
PROMPT = (0, 1, 2)
ANSWER = [3, 4, 5, 6, 7, 8]
SPEC = RequestSpec(0, len(PROMPT), len(ANSWER), ((),))
COUNTS = Counts(num_cached=0, num_computed=5, num_recomputed=0, num_preemptions=0)


def engine(name: str, boot: str = "1", fingerprint: str = "f") -> EngineFacts:
    return EngineFacts(name, f"{name}-{boot}", fingerprint, "revision", Tier.BIT_IDENTICAL)


A, B = engine("a"), engine("b")


@dataclass
class Rig:
    """A life with a clock of its own, and what it has asked for so far."""

    spec: RequestSpec = SPEC
    stop_texts: tuple[str, ...] = ()
    now: float = 100.0
    commands: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = OutputRules(self.spec.max_tokens, stop_ids=frozenset({STOP_ID}), stop_texts=self.stop_texts)
        texts = [OutputText(TABLE, PROMPT, rules) for _ in self.spec.known_output_ids]
        self.life = RequestLife(self.spec, texts, HopClock(self.now), lambda: self.now, lambda: 0.5)

    def do(self, commands: list[Command]) -> list[Command]:
        self.commands += commands
        return commands

    def start(self) -> list[Command]:
        return self.do(self.life.start(self.now))

    def last(self, kind: type[Kind]) -> Kind:
        return [command for command in self.commands if isinstance(command, kind)][-1]

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [command for command in self.commands if isinstance(command, kind)]

    def place(self, facts: EngineFacts = A, place_id: int | None = None) -> list[Admit]:
        """Answers the last enqueue and lets every admit be sent."""
        enqueue = self.last(Enqueue)
        tickets = tuple(
            Ticket("s", n, facts.boot_id, 1, enqueue.num_sequences) for n in range(enqueue.num_sequences)
        )
        placement = Placement(facts.engine_id, f"{facts.engine_id}:1", tickets, 0, "none")
        commands = self.do(self.life.placed(place_id or enqueue.place_id, placement, self.now))
        admits = [command for command in commands if isinstance(command, Admit)]
        for admit in admits:
            self.do(self.life.admitted(admit.choice, admit.attempt.gateway, facts, self.now))
        return admits

    def tokens(self, attempt: int, first: int, ids: list[int], choice: int = 0) -> list[Command]:
        return self.do(self.life.tokens(choice, attempt, first, ids, None, now=self.now))

    def end(self, attempt: int, cause: EndCause = EndCause.LENGTH, choice: int = 0) -> list[Command]:
        return self.do(self.life.ended(choice, attempt, cause, COUNTS, self.now))

    def die(self, attempt: int, choice: int = 0) -> list[Command]:
        return self.do(self.life.run_broken(choice, attempt, self.now))

    def tick(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.do(self.life.tick(self.now))

    def output(self, choice: int = 0) -> list[int]:
        return [i for tokens in self.all(EmitTokens) if tokens.choice == choice for i in tokens.ids]

    def text(self, choice: int = 0) -> str:
        return "".join(tokens.text for tokens in self.all(EmitTokens) if tokens.choice == choice)

    def error(self) -> MeshError:
        assert self.life.is_ended
        return self.last(Fail).error


def running(rig: Rig | None = None) -> Rig:
    rig = rig or Rig()
    rig.start()
    rig.place()
    return rig


def test_an_undisturbed_request_completes_once_with_all_its_tokens() -> None:
    rig = running()
    for index, token in enumerate(ANSWER):
        rig.tokens(1, index, [token])
    assert not rig.life.is_ended
    rig.end(1)
    assert rig.output() == ANSWER and rig.text() == "defghi"
    (end,) = rig.last(Complete).choices
    assert end.finish.reason is FinishReason.LENGTH and end.num_tokens == len(ANSWER)
    assert len(rig.all(Complete)) == 1 and not rig.all(Cancel) and not rig.all(Withdraw)


def test_all_tokens_of_one_step_come_with_their_finish() -> None:
    rig = running()
    rig.tokens(1, 0, [*ANSWER, 9, 9])
    rig.end(1)
    assert rig.output() == ANSWER
    assert rig.life.account.num_discarded == 2


def test_a_stream_moves_when_its_engine_dies_and_goes_on_with_the_ids_so_far() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:2])
    (enqueue,) = rig.die(1)
    assert isinstance(enqueue, Enqueue)
    assert enqueue.avoid_engine_ids == ("a",) and enqueue.preferred_fingerprint == "f"
    assert enqueue.num_known_ids == len(PROMPT) + 2 and enqueue.max_output_left == len(ANSWER) - 2
    assert enqueue.num_crashes == 1 and enqueue.was_admitted and enqueue.was_accepted
    (admit,) = rig.place(B)
    assert admit.attempt.gateway == 2 and admit.output_ids == ANSWER[:2]
    rig.tokens(2, 2, ANSWER[2:])
    rig.end(2)
    assert rig.output() == ANSWER and rig.life.account.num_moves == 1
    assert rig.life.account.tier is Tier.BIT_IDENTICAL


@pytest.mark.parametrize("facts", [A, B], ids=["old call", "new call"])
def test_stale_steps_of_a_thawed_engine_are_dropped_and_counted(facts: EngineFacts) -> None:
    """The old engine computed on while it was thought dead: its ids carry the index that is expected next."""
    rig = running()
    rig.tokens(1, 0, ANSWER[:2])
    rig.die(1)
    stale = [20, 21]
    rig.tokens(1, 2, stale)
    assert rig.life.account.num_stale == 2
    rig.place(facts)
    rig.tokens(1, 2, stale)
    assert rig.life.account.num_stale == 4
    rig.tokens(2, 2, ANSWER[2:])
    rig.tokens(1, 6, stale)
    rig.end(1, EndCause.CANCELLED)
    rig.end(2)
    assert rig.output() == ANSWER
    assert rig.life.account.num_stale == 6 and len(rig.all(Complete)) == 1


def test_a_repeated_step_is_dropped_and_an_overlapping_one_gives_only_its_new_ids() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:2])
    assert rig.tokens(1, 0, ANSWER[:2]) == []
    rig.tokens(1, 1, ANSWER[1:4])
    assert rig.output() == ANSWER[:4]
    assert rig.life.account.num_stale == 3


def test_logprobs_stay_with_their_ids_when_a_step_overlaps() -> None:
    rig = running()
    columns = [ChoiceLogprobs((i,), (-float(i),)) for i in ANSWER]
    rig.do(rig.life.tokens(0, 1, 0, ANSWER[:2], columns[:2], now=rig.now))
    rig.do(rig.life.tokens(0, 1, 1, ANSWER[1:4], columns[1:4], now=rig.now))
    emitted = [column for tokens in rig.all(EmitTokens) for column in tokens.logprobs or ()]
    assert emitted == columns[:4]


def test_a_skipped_index_moves_the_choice_away_from_that_engine() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:1])
    commands = rig.tokens(1, 2, [9])
    assert [type(command) for command in commands] == [Cancel, Enqueue]
    assert rig.last(Enqueue).avoid_engine_ids == ("a",)
    assert rig.output() == ANSWER[:1]


def test_an_engine_that_ends_a_choice_too_early_counts_as_a_crash() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:1])
    rig.end(1, EndCause.STOP)
    assert rig.last(Enqueue).num_crashes == 1


def test_death_after_the_last_token_and_before_the_end_needs_no_step() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER)
    rig.die(1)
    assert rig.output() == ANSWER
    assert len(rig.all(Complete)) == 1 and len(rig.all(Enqueue)) == 1


def test_the_third_crash_without_a_token_between_ends_the_request() -> None:
    rig = Rig()
    rig.start()
    for attempt in range(1, CRASH_LIMIT + 1):
        rig.place(engine("a", str(attempt)))
        rig.die(attempt)
    assert rig.error().reason is Reason.CRASH_LIMIT
    assert len(rig.all(Enqueue)) == CRASH_LIMIT


def test_an_engine_that_fell_silent_and_came_back_has_not_crashed() -> None:
    rig = Rig()
    rig.start()
    for attempt in range(1, 3 * CRASH_LIMIT):
        rig.place(A if attempt % 2 else B)
        rig.die(attempt)
        assert rig.last(Enqueue).num_crashes == 1 and not rig.life.choices[0].is_suspect
        rig.life.engine_is_back(0, attempt)
    rig.place(A)
    rig.die(3 * CRASH_LIMIT)
    rig.life.engine_is_back(0, 1)  # known already
    assert rig.last(Enqueue).num_crashes == 1 and not rig.life.is_ended


def test_an_accepted_token_resets_the_crash_count() -> None:
    rig = Rig()
    rig.start()
    for attempt in range(1, 6):
        rig.place(engine("a", str(attempt)))
        rig.tokens(attempt, attempt - 1, [ANSWER[attempt - 1]])
        rig.die(attempt)
    assert not rig.life.is_ended and rig.output() == ANSWER[:5]


def test_suspect_returns_count_as_crashes_and_others_do_not() -> None:
    rig = Rig()
    rig.start()
    for attempt, cause in enumerate([ReturnCause.NO_STEP, ReturnCause.DRAINING] * 4, start=1):
        rig.place()
        rig.do(rig.life.returned(0, attempt, cause, COUNTS, rig.now))
    assert rig.last(Enqueue).num_crashes == 0
    for attempt in range(9, 9 + CRASH_LIMIT):
        rig.place()
        rig.do(rig.life.returned(0, attempt, ReturnCause.SUSPECT, COUNTS, rig.now))
    assert rig.error().reason is Reason.CRASH_LIMIT


def test_a_sequence_is_suspect_after_a_step_that_raised_or_two_deaths_until_its_next_token() -> None:
    rig = running()
    assert not rig.last(Admit).is_suspect
    rig.do(rig.life.returned(0, 1, ReturnCause.SUSPECT, COUNTS, rig.now))
    rig.place()
    assert rig.last(Admit).is_suspect
    rig.tokens(2, 0, ANSWER[:1])
    suspicions = []
    for attempt in (2, 3):
        rig.die(attempt)
        rig.place()
        suspicions.append(rig.last(Admit).is_suspect)
    assert suspicions == [False, True]


def test_a_returned_sequence_prefers_the_engine_that_has_its_blocks_unless_that_drains() -> None:
    rig = running()
    rig.do(rig.life.returned(0, 1, ReturnCause.NO_STEP, COUNTS, rig.now))
    assert rig.last(Enqueue).preferred_engine_id == "a"
    rig.place()
    rig.do(rig.life.returned(0, 2, ReturnCause.DRAINING, COUNTS, rig.now))
    assert rig.last(Enqueue).preferred_engine_id == ""
    assert rig.last(Enqueue).avoid_engine_ids == ("a",)


@pytest.mark.parametrize("refusal", [AdmitRefusal.NO_ROOM, AdmitRefusal.WRONG_BOOT, AdmitRefusal.DRAINING])
def test_a_refused_admit_is_enqueued_again_and_later_refusals_wait(refusal: AdmitRefusal) -> None:
    rig = running()
    (again,) = rig.do(rig.life.admit_refused(0, 1, refusal, "", rig.now))
    assert isinstance(again, Enqueue) and again.num_crashes == 0
    rig.place()
    assert rig.do(rig.life.admit_refused(0, 2, refusal, "", rig.now)) == []
    assert rig.life.timer_s > rig.now
    rig.tick(rig.life.timer_s - rig.now)
    assert len(rig.all(Enqueue)) == 3


def test_an_admit_that_another_engine_refused_is_no_move() -> None:
    rig = running()
    rig.do(rig.life.admit_refused(0, 1, AdmitRefusal.NO_ROOM, "", rig.now))
    rig.place(B)
    rig.tokens(2, 0, ANSWER[:2])
    assert (rig.life.account.num_moves, rig.life.account.queue_reason) == (0, "none")
    rig.die(2)
    rig.place(A)
    rig.do(rig.life.admit_refused(0, 3, AdmitRefusal.NO_ROOM, "", rig.now))
    rig.tick(1.0)
    rig.place(B)
    rig.tokens(4, 2, ANSWER[2:])
    assert rig.life.account.num_moves == 0
    rig.end(4)
    assert rig.output() == ANSWER


def test_however_often_an_admit_is_refused_it_is_tried_again_within_a_moment() -> None:
    rig = running()
    for attempt in range(1, 1200):
        rig.do(rig.life.admit_refused(0, attempt, AdmitRefusal.NO_ROOM, "", rig.now))
        rig.tick(1.0)
        rig.place()
    assert rig.life.choices[0].phase is Phase.RUNNING


def test_a_stale_admit_means_that_a_higher_attempt_took_over() -> None:
    rig = running()
    rig.do(rig.life.admit_refused(0, 1, AdmitRefusal.STALE, "", rig.now))
    assert rig.error().reason is Reason.SUPERSEDED


def test_an_admit_that_could_not_be_sent_gives_its_ticket_back() -> None:
    rig = Rig()
    rig.start()
    enqueue = rig.last(Enqueue)
    placement = Placement("a", "a:1", (Ticket("s", 1, "a-1", 1, 1),), 0, "none")
    rig.do(rig.life.placed(enqueue.place_id, placement, rig.now))
    commands = rig.do(rig.life.admit_unsent(0, 1, False, rig.now))
    assert commands[0] == Withdraw(enqueue.place_id)
    assert isinstance(commands[1], Enqueue) and commands[1].avoid_engine_ids == ("a",)


def test_a_placed_that_crosses_a_withdrawal_is_ignored() -> None:
    rig = Rig()
    rig.start()
    place_id = rig.last(Enqueue).place_id
    assert rig.do(rig.life.fail(MeshError(Reason.DRAINING, "gone"), rig.now))[0] == Withdraw(place_id)
    assert rig.place(place_id=place_id) == []


def test_a_failed_request_cancels_what_runs_and_ignores_the_rest() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:1])
    commands = rig.do(rig.life.fail(MeshError(Reason.SLOW_READER, "slow"), rig.now))
    assert [type(command) for command in commands] == [Cancel, Fail]
    assert rig.tokens(1, 1, ANSWER[1:]) == [] and rig.end(1) == [] and rig.die(1) == []
    assert rig.do(rig.life.fail(MeshError(Reason.DRAINING, "gone"), rig.now)) == []


def test_a_broken_place_stream_enqueues_again_after_a_jitter_with_a_new_place() -> None:
    rig = Rig()
    rig.start()
    first = rig.last(Enqueue)
    assert rig.do(rig.life.place_broken(first.place_id, rig.now)) == []
    rig.tick(rig.life.timer_s - rig.now)
    assert rig.last(Enqueue).place_id > first.place_id and not rig.last(Enqueue).was_admitted
    rig.place()
    assert rig.life.choices[0].phase is Phase.RUNNING


def test_what_a_dying_scheduler_had_queued_says_so_to_the_next() -> None:
    rig = Rig()
    rig.start()
    assert not rig.last(Enqueue).was_accepted
    rig.life.queued(rig.last(Enqueue).place_id)
    rig.do(rig.life.place_broken(rig.last(Enqueue).place_id, rig.now))
    rig.tick(rig.life.timer_s - rig.now)
    assert rig.last(Enqueue).was_accepted and not rig.last(Enqueue).was_admitted


def test_word_of_a_queue_that_was_left_meanwhile_counts_for_nothing() -> None:
    rig = Rig()
    rig.start()
    first = rig.last(Enqueue)
    rig.do(rig.life.place_broken(first.place_id, rig.now))
    rig.life.queued(first.place_id)
    rig.tick(rig.life.timer_s - rig.now)
    assert not rig.last(Enqueue).was_accepted


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (PlaceRefusal.QUEUE_FULL, Reason.QUEUE_FULL),
        (PlaceRefusal.QUEUE_WAIT, Reason.QUEUE_WAIT),
        (PlaceRefusal.DEADLINE, Reason.DEADLINE),
        (PlaceRefusal.TOO_LARGE, Reason.TOO_LONG),
    ],
)
def test_refusals_that_end_a_request(refusal: PlaceRefusal, reason: Reason) -> None:
    rig = Rig()
    rig.start()
    rig.do(rig.life.place_refused(rig.last(Enqueue).place_id, refusal, 1.5, rig.now))
    assert rig.error().reason is reason
    assert rig.error().retry_delay_s == (1.5 if refusal is PlaceRefusal.QUEUE_FULL else None)


def test_no_engine_is_asked_for_again_until_nobody_served_it_for_too_long() -> None:
    rig = Rig()
    rig.do(rig.life.serving(False, rig.now))
    rig.start()
    begin = rig.now
    while not rig.life.is_ended:
        if rig.life.choices[0].phase is Phase.QUEUED:
            refusal = PlaceRefusal.NO_ENGINE
            rig.do(rig.life.place_refused(rig.last(Enqueue).place_id, refusal, None, rig.now))
        rig.tick(rig.life.timer_s - rig.now)
    assert rig.error().reason is Reason.UNAVAILABLE
    assert rig.now - begin == pytest.approx(rig.spec.unserved_limit_s)


def strand(rig: Rig, seconds: float) -> None:
    """A scheduler waits for an engine and gives up; the choice backs off and is enqueued again."""
    rig.tick(seconds)
    rig.do(rig.life.place_refused(rig.last(Enqueue).place_id, PlaceRefusal.NO_ENGINE, None, rig.now))
    if not rig.life.is_ended:
        rig.tick(rig.life.timer_s - rig.now)


def test_engines_that_cannot_be_asked_are_as_good_as_none() -> None:
    """Schedulers see them, but this gateway does not reach them, or they are too small for the request."""
    rig = running()
    rig.do(rig.life.serving(True, rig.now))
    rig.die(1)
    for _ in range(3):
        strand(rig, seconds=10.0)
    assert rig.error().reason is Reason.UNAVAILABLE


def test_an_engine_that_is_found_again_in_time_starts_the_count_anew() -> None:
    rig = running()
    rig.do(rig.life.serving(True, rig.now))
    for attempt in (1, 2):
        rig.die(attempt)
        for _ in range(2):
            strand(rig, seconds=10.0)
        rig.place()
    assert rig.life.choices[0].phase is Phase.RUNNING


def test_a_choice_that_loses_its_engine_has_the_whole_time_although_nobody_served_it_for_long() -> None:
    rig = running()
    rig.do(rig.life.serving(False, rig.now))
    rig.now += 10 * rig.spec.unserved_limit_s
    rig.die(1)
    assert rig.tick(rig.spec.unserved_limit_s / 2) == [] and not rig.life.is_ended
    rig.tick(rig.spec.unserved_limit_s / 2)
    assert rig.error().reason is Reason.UNAVAILABLE


def test_the_deadline_decides_here_whatever_the_phase() -> None:
    for steps in range(3):
        rig = Rig(replace(SPEC, deadline_s=102.0))
        rig.start()
        if steps:
            rig.place()
        if steps > 1:
            rig.tokens(1, 0, ANSWER[:1])
        assert rig.life.timer_s == 102.0
        rig.tick(2.0)
        assert rig.error().reason is Reason.DEADLINE
        assert bool(rig.all(Cancel)) == bool(steps) and bool(rig.all(Withdraw)) != bool(steps)


def test_queue_wait_ends_a_request_that_was_never_admitted() -> None:
    rig = Rig(replace(SPEC, max_queue_wait_s=1.0))
    rig.start()
    assert rig.last(Enqueue).queue_deadline_s == 101.0
    rig.tick(1.0)
    assert rig.error().reason is Reason.QUEUE_WAIT


def test_queue_wait_is_over_with_the_first_admission_but_not_with_a_refused_one() -> None:
    spec = replace(SPEC, max_queue_wait_s=1.0)
    admitted = running(Rig(spec))
    assert admitted.tick(5.0) == []
    admitted.die(1)
    assert admitted.last(Enqueue).queue_deadline_s is None
    refused = running(Rig(spec))
    refused.do(refused.life.admit_refused(0, 1, AdmitRefusal.NO_ROOM, "", refused.now))
    assert refused.last(Enqueue).queue_deadline_s == refused.now + 1.0
    refused.tick(1.0)
    assert refused.error().reason is Reason.QUEUE_WAIT


def test_a_refused_admit_does_not_undo_an_admission_before_it_that_gave_no_token() -> None:
    spec = replace(SPEC, max_queue_wait_s=1.0, max_run_time_s=60.0)
    rig = running(Rig(spec))
    rig.now += 5.0
    rig.do(rig.life.returned(0, 1, ReturnCause.NO_STEP, COUNTS, rig.now))
    rig.place()
    rig.do(rig.life.admit_refused(0, 2, AdmitRefusal.NO_ROOM, "", rig.now))
    assert rig.last(Enqueue).queue_deadline_s is None and not rig.life.is_ended
    assert rig.tick(54.0) == []
    rig.tick(1.0)
    (end,) = rig.last(Complete).choices
    assert end.finish.reason is FinishReason.RUN_TIME


def test_run_time_completes_with_what_is_there_and_tells_the_held_text() -> None:
    rig = running(Rig(replace(SPEC, max_run_time_s=1.0), stop_texts=("eg",)))
    rig.tokens(1, 0, ANSWER[:2])
    assert rig.text() == "d"
    rig.tick(1.0)
    assert isinstance(rig.commands[-1], Cancel)
    rig.end(1, EndCause.CANCELLED)
    (end,) = rig.last(Complete).choices
    assert end.finish.reason is FinishReason.RUN_TIME and end.num_tokens == 2 and end.final_text == "e"


def test_stop_text_cancels_the_engine_and_counts_what_it_drew_meanwhile() -> None:
    rig = running(Rig(stop_texts=("ef",)))
    rig.tokens(1, 0, ANSWER[:4])
    assert isinstance(rig.commands[-1], Cancel)
    rig.tokens(1, 4, ANSWER[4:5])
    rig.end(1, EndCause.CANCELLED)
    (end,) = rig.last(Complete).choices
    assert end.finish.stop_text == "ef" and end.num_tokens == 3 and rig.text() == "d"
    assert rig.life.account.num_discarded == 2 and rig.life.account.num_stale == 0


def test_an_engine_that_does_not_account_holds_the_end_up_only_for_a_moment() -> None:
    rig = running(Rig(stop_texts=("d",)))
    rig.tokens(1, 0, ANSWER[:1])
    assert rig.life.timer_s == pytest.approx(rig.now + SETTLE_S)
    rig.tick(SETTLE_S)
    assert len(rig.all(Complete)) == 1


@pytest.mark.parametrize("cause", [EndCause.BAD_LOGITS, EndCause.DEADLINE, EndCause.CANCELLED])
def test_ends_that_fail(cause: EndCause) -> None:
    rig = running()
    rig.end(1, cause)
    reasons = {
        EndCause.BAD_LOGITS: Reason.BAD_LOGITS,
        EndCause.DEADLINE: Reason.DEADLINE,
        EndCause.CANCELLED: Reason.SUPERSEDED,
    }
    assert rig.error().reason is reasons[cause]


def test_a_resumed_stream_goes_on_after_what_the_caller_has() -> None:
    rig = Rig(replace(SPEC, client_attempt=1, known_output_ids=(tuple(ANSWER[:4]),)))
    rig.start()
    assert not rig.all(EmitTokens) and rig.last(Enqueue).max_output_left == 2
    (admit,) = rig.place()
    assert (admit.attempt.client, admit.output_ids) == (1, ANSWER[:4])
    rig.tokens(1, 4, ANSWER[4:])
    rig.end(1)
    assert rig.all(EmitTokens)[0].first_index == 4 and rig.text() == "hi"
    assert rig.last(Complete).choices[0].num_tokens == len(ANSWER)


RESUMED = replace(
    SPEC,
    client_attempt=1,
    known_output_ids=(tuple(ANSWER[:4]),),
    was_admitted=True,
    known_fingerprint="f",
    known_tier=Tier.SAME_TOKENS,
)


def test_a_resumed_stream_asks_for_the_engine_that_would_draw_alike() -> None:
    rig = Rig(RESUMED)
    rig.start()
    assert rig.last(Enqueue).preferred_fingerprint == "f"
    rig.place()
    assert rig.life.promise()[:2] == ("f", Tier.SAME_TOKENS)
    rig.tokens(1, 4, ANSWER[4:])
    assert rig.life.account.tier is Tier.SAME_TOKENS


def test_the_tier_drops_when_a_resumed_stream_goes_on_in_another_fingerprint() -> None:
    rig = Rig(RESUMED)
    rig.start()
    rig.place(engine("b", fingerprint="other"))
    assert rig.life.promise()[:2] == ("other", Tier.CONTINUED)
    rig.tokens(1, 4, ANSWER[4:])
    assert rig.life.account.tier is Tier.CONTINUED


def test_a_dropped_tier_stays_dropped_over_resumes() -> None:
    rig = Rig(replace(RESUMED, known_tier=Tier.CONTINUED))
    rig.start()
    rig.place()
    assert rig.life.promise()[:2] == ("f", Tier.CONTINUED)
    rig.tokens(1, 4, ANSWER[4:])
    assert rig.life.account.tier is Tier.CONTINUED


def test_a_resume_that_brings_no_ids_may_be_drawn_by_any_engine() -> None:
    rig = Rig(replace(RESUMED, known_output_ids=((),), known_tier=Tier.CONTINUED))
    rig.start()
    assert rig.last(Enqueue).preferred_fingerprint == ""
    rig.place(engine("b", fingerprint="other"))
    rig.tokens(1, 0, ANSWER[:1])
    assert rig.life.promise()[:2] == ("other", Tier.BIT_IDENTICAL)
    assert rig.life.account.tier is Tier.BIT_IDENTICAL


def test_a_resumed_stream_was_admitted_before_so_no_queue_is_too_full_or_too_long_for_it() -> None:
    rig = Rig(replace(RESUMED, max_queue_wait_s=1.0))
    rig.start()
    enqueue = rig.last(Enqueue)
    assert enqueue.was_admitted and enqueue.queue_deadline_s is None
    rig.tick(1.5)
    assert not rig.life.is_ended
    rig.do(rig.life.place_refused(enqueue.place_id, PlaceRefusal.TOO_LARGE, None, rig.now))
    assert rig.error().reason is Reason.UNAVAILABLE


def test_a_resume_that_has_everything_needs_no_engine() -> None:
    rig = Rig(replace(RESUMED, known_output_ids=((3, STOP_ID),)))
    rig.start()
    assert rig.life.promise()[:2] == ("f", Tier.SAME_TOKENS) and rig.life.account.tier is Tier.SAME_TOKENS
    assert not rig.all(Enqueue)
    assert rig.last(Complete).choices[0].finish.stop_id == STOP_ID


THREE = replace(SPEC, known_output_ids=((), (), ()))


def test_choices_are_placed_together_and_move_alone() -> None:
    rig = running(Rig(THREE))
    assert rig.all(Enqueue)[0].num_sequences == 3 and len(rig.all(Admit)) == 3
    rig.tokens(1, 0, ANSWER[:1], choice=1)
    rig.die(1, choice=1)
    assert rig.last(Enqueue).num_sequences == 1
    rig.place(B)
    rig.tokens(2, 1, ANSWER[1:], choice=1)
    rig.end(2, choice=1)
    for choice in (0, 2):
        rig.tokens(1, 0, ANSWER, choice=choice)
        assert not rig.life.is_ended
        rig.end(1, choice=choice)
    assert [rig.output(choice) for choice in range(3)] == [ANSWER] * 3
    assert [end.choice for end in rig.last(Complete).choices] == [0, 1, 2]


def test_one_failed_choice_fails_the_request_and_cancels_its_siblings() -> None:
    rig = running(Rig(THREE))
    rig.end(1, EndCause.BAD_LOGITS, choice=1)
    assert rig.error().reason is Reason.BAD_LOGITS
    assert {cancel.choice for cancel in rig.all(Cancel)} >= {0, 2}
    assert len(rig.all(Fail)) == 1


def test_choices_that_wait_together_are_enqueued_again_together() -> None:
    rig = Rig(THREE)
    rig.start()
    rig.do(rig.life.place_broken(rig.last(Enqueue).place_id, rig.now))
    rig.tick(1.0)
    assert rig.last(Enqueue).num_sequences == 3 and len(rig.all(Enqueue)) == 2


def test_a_scheduler_that_gives_too_few_tickets_fails_the_request_not_the_gateway() -> None:
    rig = Rig(THREE)
    rig.start()
    placement = Placement("a", "a:1", (Ticket("s", 1, "a-1", 1, 3),), 0, "none")
    rig.do(rig.life.placed(rig.last(Enqueue).place_id, placement, rig.now))
    assert rig.error().reason is Reason.INTERNAL


def test_the_tier_drops_when_another_fingerprint_goes_on() -> None:
    rig = running()
    rig.tokens(1, 0, ANSWER[:1])
    rig.die(1)
    rig.place(engine("b", fingerprint="other"))
    rig.tokens(2, 1, ANSWER[1:2])
    assert rig.life.account.tier is Tier.CONTINUED


def test_the_tier_stays_when_the_first_engine_gave_no_token() -> None:
    rig = running()
    rig.die(1)
    rig.place(engine("b", fingerprint="other"))
    rig.tokens(2, 0, ANSWER[:1])
    assert rig.life.account.tier is Tier.BIT_IDENTICAL


def test_hops_partition_the_time_and_each_delay_lands_in_its_own() -> None:
    rig = Rig()
    rig.life.hops.enter(Stage.ENCODE, rig.now)
    rig.now += 1.0
    rig.start()
    rig.now += 2.0
    rig.place()
    rig.now += 7.0
    rig.life.progress(0, 1, 0, 4.0, rig.now)
    rig.tokens(1, 0, ANSWER[:1])
    rig.now += 8.0
    rig.tokens(1, 1, ANSWER[1:])
    rig.end(1)
    rig.now += 16.0
    spent = rig.life.hops.spent(rig.now)
    expected = {"encode": 1, "queue": 2, "dispatch": 3, "prefill": 4, "decode": 8, "deliver": 16}
    assert {stage.value: seconds for stage, seconds in spent.items() if seconds} == expected
    assert sum(spent.values()) == pytest.approx(rig.now - rig.life.hops.arrived_s)


def test_rows_computed_again_after_a_move_are_counted() -> None:
    rig = running()
    rig.life.progress(0, 1, 0, 0.0, rig.now)
    rig.tokens(1, 0, ANSWER[:3])
    rig.die(1)
    rig.place(B)
    rig.life.progress(0, 2, 2, 0.0, rig.now)
    rig.tokens(2, 3, ANSWER[3:])
    rig.end(2)
    account = rig.life.account
    assert account.num_recomputed == len(PROMPT) + 3 - 1 - 2
    assert account.num_computed == len(PROMPT) + 3 - 1 + COUNTS.num_computed
    assert account.num_cached == 0


def test_place_ids_are_never_reused() -> None:
    rig = Rig()
    rig.start()
    for attempt in count(1):
        rig.place(engine("a", str(attempt)))
        if attempt == 20:
            break
        rig.do(rig.life.returned(0, attempt, ReturnCause.NO_STEP, COUNTS, rig.now))
    ids = [enqueue.place_id for enqueue in rig.all(Enqueue)]
    assert ids == sorted(set(ids)) and len(ids) == 20
