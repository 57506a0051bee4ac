"""Credit and the races of tickets: late names, give-ups, withdraws, new calls and new processes."""

from services.contract.priority import Priority
from services.scheduler.core.commands import TicketGivenUp, Withdrawn
from services.scheduler.core.engines import Engine
from tests.support.scheduler_mesh import Mesh, handles, placed, request


def _engine(mesh: Mesh, boot_id: str = "e-boot") -> Engine | None:
    return next((each for each in mesh.core.engines() if each.facts.boot_id == boot_id), None)


def test_tickets_not_yet_named_are_spent_room(mesh: Mesh) -> None:
    mesh.engine("e", 3)
    assert len(handles(mesh.enqueue(*(request(n) for n in range(5))))) == 3
    assert handles(mesh.report("e", 3)) == []
    assert handles(mesh.report("e", 3, admitted=(1,))) == [3]


def test_room_is_absolute_so_a_named_ticket_is_not_counted_twice(mesh: Mesh) -> None:
    mesh.engine("e", 3)
    mesh.enqueue(*(request(n) for n in range(5)))
    assert handles(mesh.report("e", 0, admitted=(1, 2, 3))) == []
    assert handles(mesh.report("e", 1, ended=(1,))) == [3]


def test_a_ticket_spends_the_credit_of_every_lower_class(mesh: Mesh) -> None:
    mesh.engine("e", {Priority.REALTIME: 3, Priority.INTERACTIVE: 2, Priority.BATCH: 2})
    assert handles(mesh.enqueue(request(1, priority=Priority.REALTIME))) == [1]
    assert handles(mesh.enqueue(request(2, priority=Priority.BATCH))) == [2]
    assert handles(mesh.enqueue(request(3, priority=Priority.BATCH))) == []
    assert handles(mesh.enqueue(request(4, priority=Priority.INTERACTIVE))) == [4]
    assert handles(mesh.enqueue(request(5, priority=Priority.REALTIME))) == [5]
    assert handles(mesh.enqueue(request(6, priority=Priority.REALTIME))) == [6]
    assert handles(mesh.enqueue(request(7, priority=Priority.REALTIME))) == []


def test_tokens_are_spent_in_whole_blocks(mesh: Mesh) -> None:
    mesh.hello("e")
    mesh.report("e", 8, tokens=64, num_running=1)
    assert len(handles(mesh.enqueue(*(request(n, num_prompt_tokens=17) for n in range(3))))) == 2


def test_no_room_means_none_not_no_limit(mesh: Mesh) -> None:
    mesh.hello("e")
    assert handles(mesh.enqueue(request(1))) == []
    assert handles(mesh.report("e", 0)) == []


def test_a_ticket_not_named_within_two_seconds_is_given_up(mesh: Mesh) -> None:
    mesh.engine("e", 1)
    mesh.enqueue(request(1), request(2))
    assert handles(mesh.after(1.99)) == []
    commands = mesh.after(0.02)
    assert handles(commands) == [2]
    assert [each.number for each in commands if isinstance(each, TicketGivenUp)] == [1]


def test_a_late_name_of_a_ticket_that_was_given_up_changes_nothing(mesh: Mesh) -> None:
    mesh.engine("e", 1)
    mesh.enqueue(request(1))
    mesh.after(2.1)
    mesh.report("e", 0, admitted=(1,))
    engine = _engine(mesh)
    assert engine is not None and engine.credit.num_unnamed == 0
    assert engine.credit.usable_sequences(Priority.INTERACTIVE) == 0
    mesh.report("e", 1, ended=(1,))
    assert engine.credit.usable_sequences(Priority.INTERACTIVE) == 1


def test_tickets_of_an_earlier_scheduler_are_ignored(mesh: Mesh) -> None:
    mesh.hello("e")
    mesh.report("e", 2, admitted=(4711, 4712))
    assert len(handles(mesh.enqueue(*(request(n) for n in range(3))))) == 2


def test_withdraw_of_a_queued_handle_removes_it(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    assert [each.request.handle for each in mesh.withdraw(1) if isinstance(each, Withdrawn)] == [1]
    assert handles(mesh.report("e", 8)) == []
    assert mesh.waiting() == 0


def test_withdraw_of_a_placed_handle_returns_its_tickets(mesh: Mesh) -> None:
    mesh.engine("e", 2)
    mesh.enqueue(request(1, num_sequences=2), request(2, num_sequences=2))
    assert handles(mesh.withdraw(1)) == [2]


def test_withdraw_after_the_engine_named_the_ticket_is_ignored(mesh: Mesh) -> None:
    mesh.engine("e", 1)
    mesh.enqueue(request(1), request(2))
    mesh.report("e", 0, admitted=(1,))
    assert mesh.withdraw(1) == []
    assert mesh.withdraw(99) == []


def test_an_engine_whose_watch_is_down_gets_nothing(mesh: Mesh) -> None:
    mesh.engine("e", 4)
    mesh.down("e")
    assert handles(mesh.enqueue(request(1))) == []
    assert _engine(mesh) is None


def test_the_same_process_is_welcome_on_a_new_call_after_its_first_report(mesh: Mesh) -> None:
    mesh.engine("e", 2)
    mesh.enqueue(request(1))
    mesh.down("e")
    mesh.enqueue(request(2), request(3))
    assert handles(mesh.hello("e")) == []
    assert handles(mesh.report("e", 2)) == [2], "ticket 1 is still on its way"
    assert handles(mesh.report("e", 1, admitted=(1, 2))) == [3]


def test_a_dead_process_is_forgotten_once_its_tickets_have_ended(mesh: Mesh) -> None:
    mesh.engine("e", 2)
    mesh.enqueue(request(1))
    mesh.down("e")
    assert _engine(mesh) is not None
    mesh.after(2.1)
    assert _engine(mesh) is None


def test_a_restarted_engine_replaces_its_former_process_at_once(mesh: Mesh) -> None:
    mesh.engine("e", 4)
    mesh.hello("e", boot="second")
    assert handles(mesh.enqueue(request(1))) == []
    mesh.report("e", 4, boot="second")
    assert [answer.tickets[0].engine_boot_id for answer in placed(mesh.log)] == ["second"]
    assert mesh.down("e") == [], "the former call's end comes late"


def test_choices_are_placed_together_on_one_engine_or_not_at_all(mesh: Mesh) -> None:
    mesh.engine("e1", 3)
    mesh.engine("e2", 2)
    assert handles(mesh.enqueue(request(1, num_sequences=4))) == []
    answer = placed(mesh.report("e2", 4))[0]
    assert answer.engine.engine_id == "e2" and len(answer.tickets) == 4
    assert len({ticket.number for ticket in answer.tickets}) == 4
    assert {(ticket.batch_id, ticket.batch_size) for ticket in answer.tickets} == {(1, 4)}


def test_choices_share_their_prompts_room(mesh: Mesh) -> None:
    mesh.hello("e")
    mesh.report("e", 8, tokens=1064, num_running=1)
    assert handles(mesh.enqueue(request(1, num_prompt_tokens=1000, num_sequences=4))) == [1]
    engine = _engine(mesh)
    assert engine is not None and engine.credit.usable_tokens(Priority.INTERACTIVE) == 1064 - 1008 - 3 * 16


def test_tickets_of_a_closed_stream_count_until_named(mesh: Mesh) -> None:
    mesh.engine("e", 1)
    other = mesh.core.open_stream()
    mesh.enqueue(request(1), stream=other)
    mesh.enqueue(request(7), stream=other)
    mesh.enqueue(request(1))
    mesh.note(mesh.core.close_stream(other, mesh.now))
    assert mesh.waiting() == 1
    assert handles(mesh.report("e", 1)) == []
    assert handles(mesh.report("e", 1, admitted=(1,))) == [1]
