"""The spans of one request: a server span with children per hop; all of them end when the request does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from services.chassis.telemetry import context_from, trace_id, traceparent_of
from services.contract.errors import MeshError, Reason

ROOT = "pagemesh.gateway.generate"
_OUR_FAULT = frozenset(
    {Reason.INTERNAL, Reason.UNAVAILABLE, Reason.CRASH_LIMIT, Reason.BAD_LOGITS, Reason.DRAINING}
)

Attributes = Mapping[str, str | int | float | bool]


class RequestTrace:
    """Hops are named children; a hop that is open when the request closes ends with it."""

    def __init__(self, tracer: Tracer, traceparent: str) -> None:
        self._tracer = tracer
        self.root = tracer.start_span(ROOT, context=context_from(traceparent), kind=SpanKind.SERVER)
        self._context = set_span_in_context(self.root)
        self._open: dict[str, Span] = {}
        self.trace_id = trace_id(self.root)

    @contextmanager
    def hop(self, name: str) -> Iterator[str]:
        """A child around a block; gives its traceparent."""
        traceparent = self.begin(name, name)
        try:
            yield traceparent
        finally:
            self.end(name)

    def begin(self, key: str, name: str, attributes: Attributes | None = None) -> str:
        """Opens a child under a key of its own; gives its traceparent."""
        kind = SpanKind.CLIENT if name in ("encode", "place", "run") else SpanKind.INTERNAL
        span = self._tracer.start_span(name, context=self._context, kind=kind, attributes=attributes)
        self._open[key] = span
        return traceparent_of(span)

    def end(self, key: str, outcome: str | None = None) -> None:
        """Closes a child; one that is not open stays as it is."""
        span = self._open.pop(key, None)
        if span is not None:
            if outcome is not None:
                span.set_attribute("pagemesh.outcome", outcome)
            span.end()

    def describe(self, attributes: Attributes) -> None:
        """Attributes of the whole request."""
        self.root.set_attributes(dict(attributes))

    def close(self, outcome: str, error: MeshError | None) -> None:
        """Ends everything. A caller's fault is no error of this server."""
        for key in list(self._open):
            self.end(key)
        self.root.set_attribute("pagemesh.outcome", outcome)
        if error is not None:
            self.root.set_attribute("error.type", error.reason.value)
            if error.reason in _OUR_FAULT:
                self.root.set_status(Status(StatusCode.ERROR, error.reason.value))
        self.root.end()
