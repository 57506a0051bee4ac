"""The scheduler's instruments."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.contract.priority import Priority
from services.scheduler.core.commands import Command, Placed, Refused, TicketGivenUp, Withdrawn

QUEUE_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
DECISION_BUCKETS_S = (5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1)


class SchedulerMetrics:
    """Declared here, counted from the core's commands."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting_sequences = Gauge(
            "pagemesh_scheduler_waiting_sequences", "Waiting sequences", ["priority"], registry=registry
        )
        self.waiting_tokens = Gauge(
            "pagemesh_scheduler_waiting_tokens", "Known tokens that wait", ["priority"], registry=registry
        )
        self.engines_live = Gauge(
            "pagemesh_scheduler_engines_live", "Engines that take admits", registry=registry
        )
        self.queue_seconds = Histogram(
            "pagemesh_scheduler_queue_seconds",
            "From enqueue to its end",
            ["priority", "outcome"],
            buckets=QUEUE_BUCKETS_S,
            registry=registry,
        )
        self.decision_seconds = Histogram(
            "pagemesh_scheduler_decision_seconds",
            "Time of the core per request placed or refused",
            buckets=DECISION_BUCKETS_S,
            registry=registry,
        )
        self.tickets_issued = Counter(
            "pagemesh_scheduler_tickets_issued_total", "Tickets given to gateways", registry=registry
        )
        self.tickets_given_up = Counter(
            "pagemesh_scheduler_tickets_given_up_total", "Tickets no engine named in time", registry=registry
        )
        self.refusals = Counter(
            "pagemesh_scheduler_refusals_total", "Requests without a place", ["reason"], registry=registry
        )

    def watch_waiting(self, waiting: Callable[[Priority], tuple[int, int]]) -> None:
        """Reads the gauges from the core when they are scraped."""
        for priority in Priority:
            label = priority.name.lower()
            self.waiting_sequences.labels(label).set_function(lambda p=priority: waiting(p)[0])  # type: ignore[misc]
            self.waiting_tokens.labels(label).set_function(lambda p=priority: waiting(p)[1])  # type: ignore[misc]

    def note(self, command: Command) -> None:
        """Counts what the core decided."""
        match command:
            case Placed():
                self.tickets_issued.inc(len(command.tickets))
                self._queued(command, "placed")
            case Refused():
                self.refusals.labels(command.refusal.name.lower()).inc()
                self._queued(command, "refused")
            case Withdrawn():
                self._queued(command, "withdrawn")
            case TicketGivenUp():
                self.tickets_given_up.inc()

    def _queued(self, command: Placed | Refused | Withdrawn, outcome: str) -> None:
        priority = command.request.priority.name.lower()
        self.queue_seconds.labels(priority, outcome).observe(command.queued_s)
