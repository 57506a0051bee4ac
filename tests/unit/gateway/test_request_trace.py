"""Every span of a request ends with it, and a caller's fault is no error of this server."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from services.contract.errors import MeshError, Reason
from services.gateway.request_trace import ROOT, RequestTrace

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def traced() -> tuple[RequestTrace, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RequestTrace(provider.get_tracer("test"), PARENT), exporter


def test_hops_that_are_open_end_with_the_request_in_the_callers_trace() -> None:
    trace, exporter = traced()
    with trace.hop("receive"):
        pass
    traceparent = trace.begin("run 0 1", "run", {"pagemesh.choice": 0})
    trace.begin("place 1", "place")
    trace.end("place 1", "broken")
    trace.end("place 1")
    trace.close("cancelled", None)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"receive", "run", "place", ROOT}
    assert trace.trace_id == "a" * 32 and traceparent.split("-")[1] == "a" * 32
    root = spans[ROOT]
    assert root.parent is not None and f"{root.parent.span_id:016x}" == "b" * 16
    for name in ("receive", "run", "place"):
        parent = spans[name].parent
        assert parent is not None and root.context is not None and parent.span_id == root.context.span_id


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.INVALID_FIELD, StatusCode.UNSET), (Reason.CRASH_LIMIT, StatusCode.ERROR)],
)
def test_only_our_faults_are_errors(reason: Reason, status: StatusCode) -> None:
    trace, exporter = traced()
    trace.close(reason.value.lower(), MeshError(reason, "words"))
    (root,) = exporter.get_finished_spans()
    assert root.status.status_code is status and root.attributes is not None
    assert root.attributes["error.type"] == reason.value
