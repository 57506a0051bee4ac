"""The gateway's instruments.

TTFT is from the request fully received to the first token event written, ITL between token events of one
choice; outcomes are `ok`, `cancelled` or an error's reason.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.contract.priority import Priority

_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0)
_SLOW = (*_FAST, 10.0, 20.0, 40.0, 80.0)


class GatewayMetrics:
    """All instruments on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_class = ["priority"]
        self.ttft = Histogram(
            "pagemesh_gateway_ttft_seconds",
            "From arrival to the first token event written.",
            by_class,
            buckets=_SLOW,
            registry=registry,
        )
        self.itl = Histogram(
            "pagemesh_gateway_itl_seconds",
            "Between two token events of one choice.",
            by_class,
            buckets=_FAST,
            registry=registry,
        )
        self.queue = Histogram(
            "pagemesh_gateway_queue_seconds",
            "Waiting for tickets, all placements of a request together.",
            by_class,
            buckets=_SLOW,
            registry=registry,
        )
        self.elapsed = Histogram(
            "pagemesh_gateway_request_seconds",
            "From arrival to the end.",
            ["outcome"],
            buckets=_SLOW,
            registry=registry,
        )
        self.started = Counter("pagemesh_gateway_started_total", "Requests that arrived.", registry=registry)
        self.requests = Counter(
            "pagemesh_gateway_requests_total",
            "Requests that ended, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.finishes = Counter(
            "pagemesh_gateway_finished_choices_total",
            "Choices that ended well, by finish reason.",
            ["reason"],
            registry=registry,
        )
        self.tokens = Counter(
            "pagemesh_gateway_output_tokens_total", "Output tokens returned.", registry=registry
        )
        self.prompt_tokens = Counter(
            "pagemesh_gateway_prompt_tokens_total", "Prompt tokens of requests that ran.", registry=registry
        )
        self.cached_tokens = Counter(
            "pagemesh_gateway_cached_tokens_total",
            "Prompt tokens that engines found in their prefix caches.",
            registry=registry,
        )
        self.moves = Counter(
            "pagemesh_gateway_moves_total",
            "Times a choice went on in another engine or process.",
            registry=registry,
        )
        self.stale_tokens = Counter(
            "pagemesh_gateway_stale_tokens_total",
            "Tokens of old attempts that were dropped.",
            registry=registry,
        )
        self.running = Gauge(
            "pagemesh_gateway_running_requests",
            "Requests with an admitted choice.",
            by_class,
            registry=registry,
        )
        self.waiting = Gauge(
            "pagemesh_gateway_waiting_requests",
            "Requests that have no admitted choice yet, or none any more.",
            by_class,
            registry=registry,
        )
        for priority in Priority:
            for instrument in (self.ttft, self.itl, self.queue, self.running, self.waiting):
                instrument.labels(priority=label(priority))
        for outcome in ("ok", "cancelled"):
            self.requests.labels(outcome=outcome)


def label(priority: Priority) -> str:
    """A class as a label."""
    return priority.name.lower()
