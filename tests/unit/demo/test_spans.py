"""Spans that processes export are kept and drawn as one tree."""

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from rich.console import Console

from services.demo.span_receiver import SpanReceiver
from services.demo.span_tree import draw, roots_of, services_of


def provider(service: str, address: str) -> TracerProvider:
    made = TracerProvider(resource=Resource.create({"service.name": service}))
    made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=address, insecure=True)))
    return made


def test_spans_of_two_services_form_one_tree():
    with SpanReceiver() as receiver:
        gateway, engine = (provider(f"pagemesh-{name}", receiver.address) for name in ("gateway", "engine"))
        with gateway.get_tracer("t").start_as_current_span("generate") as root:
            root.set_attribute("n", 3)
            with engine.get_tracer("t").start_as_current_span("prefill"):
                pass
        trace_id = f"{root.get_span_context().trace_id:032x}"
        spans = receiver.wait_for(trace_id, lambda found: len(found) == 2)
        for made in (gateway, engine):
            made.shutdown()
    assert [span.name for span in roots_of(spans)] == ["generate"]
    assert services_of(spans) == {"pagemesh-gateway", "pagemesh-engine"}
    assert spans[0].attributes == {"n": 3} and spans[0].duration_ms >= spans[1].duration_ms
    console = Console(width=100)
    with console.capture() as shown:
        console.print(draw(spans))
    lines = shown.get().splitlines()
    assert lines[1].lstrip("└─ ").startswith("generate  pagemesh-gateway")
    assert lines[2].startswith("    └── prefill  pagemesh-engine")


def test_a_span_without_its_parent_is_a_root_of_its_own():
    with SpanReceiver() as receiver:
        engine = provider("pagemesh-engine", receiver.address)
        tracer = engine.get_tracer("t")
        with tracer.start_as_current_span("never exported") as outer:
            with tracer.start_as_current_span("prefill"):
                pass
            trace_id = f"{outer.get_span_context().trace_id:032x}"
            spans = receiver.wait_for(trace_id, lambda found: len(found) == 1)
        engine.shutdown()
    assert [span.name for span in roots_of(spans)] == ["prefill"]
