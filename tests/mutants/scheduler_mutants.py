"""Faults in the scheduler: credit, tickets, withdrawals and turns."""

from tests.mutants.mutant import Mutant

TICKETS = "tests/unit/scheduler/test_tickets.py::"
WAITING = "tests/unit/scheduler/test_waiting.py::"

SCHEDULER_MUTANTS = (
    Mutant(
        name="withdraw of a queued handle ignored",
        file="services/scheduler/core/placement.py",
        old="        if entry is not None:\n            self._end_withdrawn(entry, now)",
        new="        if entry is not None:\n            pass",
        tests=(TICKETS + "test_withdraw_of_a_queued_handle_removes_it",),
    ),
    Mutant(
        name="withdraw of a placed handle ignored",
        file="services/scheduler/core/tickets.py",
        old="return engine, self.release(engine, tuple(numbers))",
        new="return engine, []",
        tests=(TICKETS + "test_withdraw_of_a_placed_handle_returns_its_tickets",),
    ),
    Mutant(
        name="ticket's credit not spent",
        file="services/scheduler/core/credit.py",
        old="self._spend(ticket, 1)",
        new="self._spend(ticket, 0)",
        tests=(TICKETS + "test_tickets_not_yet_named_are_spent_room",),
    ),
    Mutant(
        name="ticket spends its own class only",
        file="services/scheduler/core/credit.py",
        old="in range(ticket.request.priority,",
        new="in range(ticket.request.priority, ticket.request.priority + 1) or range(",
        tests=(TICKETS + "test_a_ticket_spends_the_credit_of_every_lower_class",),
    ),
    Mutant(
        name="ticket named by the engine still counted",
        file="services/scheduler/core/placement.py",
        old="self._tickets.release(engine, (*report.admitted, *report.ended))",
        new="pass",
        tests=(TICKETS + "test_room_is_absolute_so_a_named_ticket_is_not_counted_twice",),
    ),
    Mutant(
        name="draining engine chosen",
        file="services/scheduler/core/engines.py",
        old="return self.is_up and not self.is_draining",
        new="return self.is_up",
        tests=(WAITING + "test_a_draining_engine_gets_nothing_and_is_no_engine",),
    ),
    Mutant(
        name="unreachable engine chosen",
        file="services/scheduler/core/engines.py",
        old="return not unreachable or unreachable.get(engine.facts.engine_id) != engine.facts.boot_id",
        new="return True",
        tests=(WAITING + "test_no_ticket_for_an_engine_that_the_gateway_does_not_reach",),
    ),
)
