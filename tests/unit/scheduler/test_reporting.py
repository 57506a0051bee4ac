"""When engines hear of waiting work, and the timers underneath."""

from services.contract.priority import Priority
from services.scheduler.core.commands import Command, ReportWaiting
from services.scheduler.core.timers import Timers
from tests.support.scheduler_mesh import Mesh, request


def _reports(commands: list[Command]) -> list[tuple[int, ...]]:
    """Waiting sequences by class, one tuple per report."""
    return [
        tuple(each.waiting[priority][0] for priority in Priority)
        for each in commands
        if isinstance(each, ReportWaiting)
    ]


def test_a_class_that_becomes_nonempty_is_reported_at_once(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    assert _reports(mesh.enqueue(request(1))) == [(0, 1, 0)]
    assert _reports(mesh.enqueue(request(2, priority=Priority.BATCH))) == [(0, 1, 1)]


def test_other_changes_are_reported_at_most_every_interval(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    assert _reports(mesh.enqueue(request(2))) == []
    assert _reports(mesh.enqueue(request(3))) == []
    assert _reports(mesh.after(0.019)) == []
    assert _reports(mesh.after(0.002)) == [(0, 3, 0)]
    assert _reports(mesh.after(1.0)) == []
    assert _reports(mesh.enqueue(request(4))) == [(0, 4, 0)]


def test_an_empty_queue_is_reported_and_a_change_undone_is_not(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    mesh.enqueue(request(2))
    mesh.withdraw(2)
    assert _reports(mesh.after(0.05)) == []
    mesh.withdraw(1)
    assert _reports(mesh.log)[-1] == (0, 0, 0)


def test_an_engine_that_was_just_met_is_told_the_state(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1))
    mesh.after(1.0)
    assert _reports(mesh.hello("second")) == [(0, 1, 0)]


def test_what_leaves_at_once_is_never_reported_as_waiting(mesh: Mesh) -> None:
    mesh.engine("e", 8)
    mesh.after(1.0)
    assert _reports(mesh.enqueue(request(1))) == []


def test_parked_requests_are_no_waiting_work(mesh: Mesh) -> None:
    """An engine that its gateway cannot reach must not cut slices for it."""
    mesh.engine("e", 0)
    mesh.reach("e", False)
    assert _reports(mesh.enqueue(request(1))) == []
    assert mesh.waiting() == 1


def test_timers_fire_in_order_and_cancelled_ones_never() -> None:
    timers, fired = Timers(), list[str]()
    timers.arm(2.0, lambda _: fired.append("second"))
    cancelled = timers.arm(1.5, lambda _: fired.append("cancelled"))
    timers.arm(1.0, lambda _: timers.cancel(cancelled))
    timers.arm(1.0, lambda _: fired.append("first"))
    assert timers.next_due() == 1.0
    timers.fire(0.9)
    assert fired == []
    timers.fire(2.0)
    assert fired == ["first", "second"] and timers.next_due() is None


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    for number in range(100_000):
        timers.cancel(timers.arm(60.0 + number, lambda _: None))
    assert len(timers) == 0 and len(timers._heap) < 1000
