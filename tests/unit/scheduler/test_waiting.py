"""What ends a wait: bounds, deadlines, no engine, reach, drain; and what an engine to avoid means."""

import pytest

from services.contract.priority import Priority
from services.scheduler.core.commands import ModelsChanged, News, Refused, Withdrawn
from services.scheduler.core.limits import Limits
from services.scheduler.core.request import Refusal
from tests.support.scheduler_mesh import MODEL, Mesh, handles, placed, refusals, request


def test_the_queue_is_bounded_by_sequences_and_choices_count_as_such() -> None:
    mesh = Mesh(Limits(max_queued_sequences=10))
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_sequences=8), request(2))
    assert refusals(mesh.enqueue(request(3, num_sequences=2))) == {3: Refusal.QUEUE_FULL}
    assert refusals(mesh.enqueue(request(4))) == {}
    assert refusals(mesh.enqueue(request(5))) == {5: Refusal.QUEUE_FULL}


def test_the_queue_is_bounded_by_tokens() -> None:
    mesh = Mesh(Limits(max_queued_tokens=1000))
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_prompt_tokens=900))
    assert refusals(mesh.enqueue(request(2, num_prompt_tokens=101))) == {2: Refusal.QUEUE_FULL}
    assert refusals(mesh.enqueue(request(3, num_prompt_tokens=100))) == {}


def test_one_class_does_not_fill_the_queue_for_another() -> None:
    mesh = Mesh(Limits(max_queued_sequences=1))
    mesh.engine("e", 0)
    mesh.enqueue(request(1, priority=Priority.BATCH))
    assert refusals(mesh.enqueue(request(2, priority=Priority.REALTIME))) == {}


def test_what_a_scheduler_took_once_is_never_refused_for_a_full_queue() -> None:
    mesh = Mesh(Limits(max_queued_sequences=1))
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    assert refusals(mesh.enqueue(request(2, was_accepted=True), request(3))) == {3: Refusal.QUEUE_FULL}


def test_a_full_queue_refuses_nobody_for_whom_there_is_room() -> None:
    mesh = Mesh(Limits(max_queued_sequences=1))
    mesh.engine("e", {Priority.REALTIME: 1, Priority.INTERACTIVE: 0, Priority.BATCH: 0})
    mesh.enqueue(request(1))
    assert handles(mesh.enqueue(request(2, priority=Priority.REALTIME))) == [2]


def test_the_retry_delay_follows_the_measured_drain() -> None:
    slow, fast = _delay_after_draining(2), _delay_after_draining(20)
    assert slow == pytest.approx(100 / 2 * 0.75, rel=0.3)
    assert fast == pytest.approx(100 / 20 * 0.75, rel=0.3)


def _delay_after_draining(per_second: int) -> float:
    mesh = Mesh(Limits(max_queued_sequences=100))
    mesh.engine("e", 0, max_sequences=1000)
    mesh.enqueue(*(request(n) for n in range(100)))
    last = 100
    for _ in range(30):
        mesh.after(1.0)
        mesh.report("e", per_second, admitted=tuple(range(1, 2000)), num_running=1)
        mesh.enqueue(*(request(last + n) for n in range(per_second)))
        last += per_second
    refused = [each for each in mesh.enqueue(request(99_999)) if isinstance(each, Refused)]
    return refused[0].retry_delay_s


def test_the_retry_delay_is_jittered() -> None:
    delays = []
    for jitter in (0.0, 1.0):
        mesh = Mesh(Limits(max_queued_sequences=1), jitter=jitter)
        mesh.engine("e", 0)
        commands = mesh.enqueue(request(1), request(2))
        delays += [each.retry_delay_s for each in commands if isinstance(each, Refused)]
    assert delays == [30.0, 60.0]


def test_queue_time_is_pruned_by_timer_and_the_expired_never_run(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(*(request(n, queue_time_left_s=0.5) for n in range(100)), request(500))
    assert refusals(mesh.after(0.499)) == {}
    assert set(refusals(mesh.after(0.002)).values()) == {Refusal.QUEUE_WAIT}
    assert mesh.waiting() == 1
    assert handles(mesh.report("e", 8)) == [500]


def test_the_callers_deadline_is_pruned_by_timer(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, time_left_s=1.0, queue_time_left_s=3.0))
    assert mesh.core.next_due() == pytest.approx(mesh.now + 1.0)
    assert refusals(mesh.after(1.0)) == {1: Refusal.DEADLINE}


def test_a_placed_request_leaves_no_timer_but_its_tickets(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, time_left_s=1.0, queue_time_left_s=0.5))
    mesh.report("e", 1)
    assert refusals(mesh.after(1.5)) == {}
    mesh.report("e", 0, admitted=(1,))
    mesh.after(0.1)
    assert mesh.core.next_due() is None


def test_without_an_engine_a_request_waits_a_while(mesh: Mesh) -> None:
    mesh.enqueue(request(1))
    mesh.after(9.9)
    mesh.engine("e", 1)
    assert [(answer.request.handle, answer.reason.value) for answer in placed(mesh.log)] == [(1, "no_engine")]


def test_without_an_engine_for_too_long_it_is_refused(mesh: Mesh) -> None:
    mesh.enqueue(request(1))
    assert refusals(mesh.after(9.99)) == {}
    assert refusals(mesh.after(0.02)) == {1: Refusal.NO_ENGINE}


def test_waiting_for_room_is_no_waiting_for_an_engine(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    assert refusals(mesh.after(60)) == {}
    mesh.down("e")
    mesh.after(5)
    mesh.engine("e", 0)
    assert refusals(mesh.after(60)) == {}
    mesh.down("e")
    assert refusals(mesh.after(10.1)) == {1: Refusal.NO_ENGINE}


def test_a_draining_engine_gets_nothing_and_is_no_engine(mesh: Mesh) -> None:
    mesh.engine("e", 4)
    commands = mesh.report("e", 4, is_draining=True)
    assert [each.models for each in commands if isinstance(each, ModelsChanged)] == [()]
    mesh.enqueue(request(1))
    assert refusals(mesh.after(10.1)) == {1: Refusal.NO_ENGINE}


@pytest.mark.parametrize(
    "fields",
    [
        {"num_sequences": 9},
        {"num_prompt_tokens": 8000, "max_output_tokens": 193},
        {"num_prompt_tokens": 9000},
    ],
)
def test_what_no_engine_could_ever_hold_is_refused_at_once(mesh: Mesh, fields: dict[str, int]) -> None:
    mesh.engine("e", 8)
    assert refusals(mesh.enqueue(request(1, **fields))) == {1: Refusal.TOO_LARGE}


def test_what_ran_before_waits_for_an_engine_as_large_as_the_one_it_lost(mesh: Mesh) -> None:
    mesh.engine("small", 8, max_pool_tokens=1000)
    mesh.engine("large", 0)
    mesh.down("large")
    commands = mesh.enqueue(request(1, num_prompt_tokens=2000, was_admitted=True), request(2))
    assert refusals(commands) == {} and handles(commands) == [2]
    mesh.engine("large", 1)
    assert handles(mesh.log) == [2, 1]


def test_a_large_request_is_parked_when_only_small_engines_are_left(mesh: Mesh) -> None:
    mesh.engine("small", 8, max_pool_tokens=1000)
    mesh.engine("large", 0)
    mesh.enqueue(request(1, num_prompt_tokens=2000))
    mesh.down("large")
    assert refusals(mesh.after(10.1)) == {1: Refusal.NO_ENGINE}


def test_no_ticket_for_an_engine_that_the_gateway_does_not_reach(mesh: Mesh) -> None:
    mesh.engine("e", 4)
    mesh.reach("e", False)
    other = mesh.core.open_stream()
    assert handles(mesh.enqueue(request(1))) == []
    assert handles(mesh.enqueue(request(1), stream=other)) == [1]
    assert handles(mesh.reach("e", True)) == [1]


def test_unreachable_is_said_of_a_process_not_of_its_successor(mesh: Mesh) -> None:
    mesh.engine("e", 4)
    mesh.reach("e", False)
    mesh.enqueue(request(1))
    mesh.hello("e", boot="second")
    assert handles(mesh.report("e", 4, boot="second")) == [1]


def test_requests_without_reach_do_not_stand_before_others(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.reach("e", False)
    other = mesh.core.open_stream()
    mesh.enqueue(*(request(n, age_s=60) for n in range(50)))
    mesh.enqueue(request(99), stream=other)
    mesh.after(0.5)
    assert handles(mesh.report("e", 1)) == [99]


def test_an_engine_that_becomes_unreachable_is_no_engine_after_a_while(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    mesh.reach("e", False)
    assert refusals(mesh.after(10.1)) == {1: Refusal.NO_ENGINE}


def test_engines_to_avoid_are_avoided_while_there_is_another(mesh: Mesh) -> None:
    mesh.engine("bad", 8)
    mesh.engine("good", 1)
    commands = mesh.enqueue(request(1, avoid_engine_ids=frozenset({"bad"})))
    assert [answer.engine.engine_id for answer in placed(commands)] == ["good"]


def test_the_only_engine_is_tried_again_after_a_backoff_though_it_is_to_be_avoided(mesh: Mesh) -> None:
    mesh.engine("bad", 8)
    mesh.enqueue(request(1, avoid_engine_ids=frozenset({"bad"}), num_crashes=1))
    mesh.enqueue(request(2, avoid_engine_ids=frozenset({"bad"}), num_crashes=2))
    assert handles(mesh.after(0.37)) == []
    assert handles(mesh.after(0.01)) == [1]
    assert handles(mesh.after(0.38)) == [2]


def test_the_sessions_engine_is_preferred_while_it_has_credit(mesh: Mesh) -> None:
    mesh.engine("idle", 8)
    mesh.engine("mine", 1)
    mesh.report("mine", 1, num_running=7)
    commands = mesh.enqueue(*(request(n, preferred_engine_id="mine") for n in (1, 2)))
    assert [answer.engine.engine_id for answer in placed(commands)] == ["mine", "idle"]


def test_a_moved_stream_prefers_an_equal_fingerprint(mesh: Mesh) -> None:
    mesh.engine("idle", 8, fingerprint_hash="f1")
    mesh.engine("busy", 1, fingerprint_hash="f2")
    mesh.report("busy", 1, num_running=7)
    commands = mesh.enqueue(*(request(n, preferred_fingerprint="f2") for n in (1, 2)))
    assert [answer.engine.engine_id for answer in placed(commands)] == ["busy", "idle"]


def test_equally_loaded_engines_take_turns(mesh: Mesh) -> None:
    for name in ("a", "b", "c"):
        mesh.engine(name, 8)
    assert sorted(
        answer.engine.engine_id for answer in placed(mesh.enqueue(*map(request, range(6))))
    ) == list("aabbcc")


def test_models_do_not_mix(mesh: Mesh) -> None:
    mesh.engine("e", 8)
    mesh.engine("other", 8, model="other")
    commands = mesh.enqueue(request(1, model="other"), request(2))
    assert {answer.request.handle: answer.engine.engine_id for answer in placed(commands)} == {
        1: "other",
        2: "e",
    }


def test_a_repeated_handle_ends_once_and_leaves_nothing_behind(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1), request(2))
    assert refusals(mesh.enqueue(request(1))) == {1: Refusal.INVALID}
    assert handles(mesh.report("e", 8)) == [2]
    assert refusals(mesh.enqueue(request(2))) == {2: Refusal.INVALID}


def test_an_invalid_item_ends_alone(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1), request(2))
    commands = mesh.note(mesh.core.refuse_invalid(mesh.stream, request(2), mesh.now))
    assert refusals(commands) == {2: Refusal.INVALID}
    assert mesh.waiting() == 1


def test_a_closed_streams_queue_is_forgotten(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, time_left_s=5), request(2))
    commands = mesh.core.close_stream(mesh.stream, mesh.now)
    assert [each.request.handle for each in commands if isinstance(each, Withdrawn)] == [1, 2]
    assert mesh.waiting() == 0
    assert placed(mesh.report("e", 8)) == []


def test_draining_refuses_what_waits_and_what_comes(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1), request(2, num_prompt_tokens=4000))
    mesh.after(0.3)
    mesh.report("e", 1, tokens=200, num_running=1)
    mesh.enqueue(request(3))
    assert set(refusals(mesh.core.drain(mesh.now)).values()) == {Refusal.DRAINING}
    assert mesh.waiting() == 0
    mesh.report("e", 8)
    assert refusals(mesh.enqueue(request(4))) == {4: Refusal.DRAINING}


def test_a_request_that_begins_to_wait_learns_how_many_are_ahead(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_sequences=3))
    news = [each for each in mesh.enqueue(request(2)) if isinstance(each, News)]
    assert [(each.handle, each.num_ahead) for each in news] == [(2, 3)]


def test_limits_are_the_largest_live_engines(mesh: Mesh) -> None:
    mesh.engine("small", max_sequences=4, max_pool_tokens=1000)
    mesh.engine("large", max_sequences=8, max_pool_tokens=9000, max_model_len=4096)
    model = mesh.core.models[0]
    assert (model.model, model.num_engines) == (MODEL, 2)
    assert (model.max_sequences, model.max_pool_tokens, model.max_model_len) == (8, 9000, 8192)
    mesh.down("large")
    assert mesh.core.models[0].max_pool_tokens == 1000


def test_explain_says_what_place_would_do_and_changes_nothing(mesh: Mesh) -> None:
    mesh.engine("e", 1)
    mesh.now += 0.25
    before = mesh.core.next_due()
    said = mesh.core.explain(request(1, num_prompt_tokens=257), mesh.now)
    assert (said.engine_id, said.bucket, said.num_ahead, said.refusal) == ("e", 512, 0, None)
    assert said.snapshot_age_s == pytest.approx(0.25)
    assert mesh.core.next_due() == before
    assert handles(mesh.enqueue(request(1), request(2))) == [1]
    said = mesh.core.explain(request(3), mesh.now)
    assert (said.engine_id, said.num_ahead, said.refusal) == ("", 1, None)
    said = mesh.core.explain(request(3, num_sequences=99), mesh.now)
    assert said.refusal is Refusal.TOO_LARGE
