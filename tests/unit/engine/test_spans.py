"""The spans of sequences: under the admit's traceparent, one `prefill` and one `decode`, none left open."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.engine.core.admission import Admission, Attempt, Identity
from services.engine.core.outcome import (
    Counts,
    Ended,
    EndReason,
    NewIds,
    Progress,
    Refusal,
    Refused,
    StreamNews,
)
from services.engine.spans import SequenceSpans
from services.engine.step import SamplingSpec

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def admission(handle: int) -> Admission:
    identity = Identity(b"t" * 16, "r", 0)
    traceparent = f"00-{TRACE}-{PARENT}-01"
    return Admission(1, handle, identity, Attempt(1, 1), (1,), 1, 9, SamplingSpec(), traceparent=traceparent)


def test_a_sequence_is_a_prefill_and_a_decode_under_its_admit() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = SequenceSpans(provider.get_tracer("test"), "m")
    for handle in (1, 2, 3):
        spans.admit(admission(handle))
    first = NewIds(1, 1, 0, (5, 6), None)
    spans.note(1, StreamNews(progress=[Progress(1, 16, 10, 2_000)], new_ids=[first]))
    spans.note(1, StreamNews(refused=[Refused(2, Refusal.NO_ROOM, "")]))
    spans.note(1, StreamNews(ended=[Ended(1, EndReason.LENGTH, Counts(num_preemptions=2))]))
    spans.note(1, StreamNews(ended=[Ended(3, EndReason.CANCELLED, Counts())]))
    prefill, decode = exporter.get_finished_spans()
    assert (prefill.name, decode.name) == ("prefill", "decode") and len(spans) == 0
    for span in (prefill, decode):
        assert span.parent is not None and span.start_time is not None and span.end_time is not None
        assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
        assert span.start_time <= span.end_time
    assert prefill.end_time == decode.start_time
    assert (prefill.end_time or 0) - (prefill.start_time or 0) == 2_000_000
    assert prefill.attributes is not None and prefill.attributes["pagemesh.cached_tokens"] == 16
    assert decode.attributes is not None and decode.attributes["gen_ai.usage.output_tokens"] == 2


def test_a_broken_stream_leaves_no_trace_open() -> None:
    spans = SequenceSpans(TracerProvider().get_tracer("test"), "m")
    spans.admit(admission(1))
    spans.drop_stream(2)
    assert len(spans) == 1
    spans.drop_stream(1)
    assert len(spans) == 0
