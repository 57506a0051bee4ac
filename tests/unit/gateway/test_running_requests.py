"""Which attempt of a request may run here, and calls per tenant and second."""

from contextlib import ExitStack

import pytest

from services.contract.errors import MeshError, Reason
from services.gateway.access.rate_limit import RateLimit
from services.gateway.running_requests import REMEMBER_S, RunningRequests


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def untouched(error: MeshError) -> None:
    pytest.fail(f"interrupted: {error!r}")


def test_a_higher_attempt_ends_the_lower_and_an_equal_or_lower_is_refused() -> None:
    running, ended = RunningRequests(Clock()), list[MeshError]()
    with ExitStack() as stack:
        stack.enter_context(running.enter("t", "r", 1, ended.append))
        for attempt in (0, 1):
            with pytest.raises(MeshError) as caught, running.enter("t", "r", attempt, ended.append):
                pass
            assert caught.value.reason is Reason.SUPERSEDED
        assert not ended
        stack.enter_context(running.enter("t", "r", 2, ended.append))
        assert [error.reason for error in ended] == [Reason.SUPERSEDED]
    assert len(running) == 0


def test_tenants_do_not_meet_in_a_request_id() -> None:
    running = RunningRequests(Clock())
    with running.enter("a", "r", 0, untouched), running.enter("b", "r", 5, untouched):
        assert len(running) == 2


def test_only_attempts_that_an_engine_may_know_are_remembered_and_not_for_ever() -> None:
    clock = Clock()
    running = RunningRequests(clock)
    for was_admitted in (False, True):
        with running.enter("t", "r", 0, untouched) as entry:
            entry.was_admitted = was_admitted
    with pytest.raises(MeshError), running.enter("t", "r", 0, untouched):
        pass
    clock.now = REMEMBER_S
    with running.enter("t", "r", 0, untouched):
        assert len(running) == 1


def test_a_shutdown_ends_all() -> None:
    running, ended = RunningRequests(Clock()), list[MeshError]()
    with running.enter("t", "1", 0, ended.append), running.enter("t", "2", 0, ended.append):
        running.interrupt_all(MeshError(Reason.DRAINING, "bye"))
    assert len(ended) == 2


def test_calls_over_the_rate_are_refused_with_the_time_until_the_next() -> None:
    clock = Clock()
    limit = RateLimit(2.0, clock)
    limit.spend("t")
    limit.spend("t")
    with pytest.raises(MeshError) as caught:
        limit.spend("t")
    assert caught.value.reason is Reason.QUOTA and caught.value.retry_delay_s == pytest.approx(0.5)
    limit.spend("another")
    clock.now = 0.5
    limit.spend("t")
