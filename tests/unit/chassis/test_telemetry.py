"""Spans arrive at a collector, and a collector that is away costs nothing."""

import asyncio
import logging
import time
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client import CollectorRegistry, Counter

from services.chassis.bind import BindError
from services.chassis.settings import ServiceSettings
from services.chassis.telemetry import (
    context_from,
    span_id,
    start_metrics,
    start_telemetry,
    trace_id,
    traceparent_in,
    traceparent_of,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.resources: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:
        self.resources += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()


def _settings(endpoint: str = "") -> ServiceSettings:
    return ServiceSettings(otlp_endpoint=endpoint)


async def test_spans_reach_the_collector_with_service_name_and_parent() -> None:
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    telemetry = start_telemetry("pagemesh-probe", _settings(f"127.0.0.1:{port}"))
    with telemetry.tracer.start_span("step", context=context_from(PARENT)) as span:
        assert trace_id(span) == PARENT[3:35], "an unsampled parent is traced all the same"
    await asyncio.to_thread(telemetry.shutdown)
    await server.stop(None)
    (resource,) = collector.resources
    names = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert names["service.name"] == "pagemesh-probe"
    (found,) = resource.scope_spans[0].spans
    assert found.parent_span_id.hex() == PARENT[36:52] and found.span_id.hex() == span_id(span)


def test_traceparent_goes_through_to_a_child_in_another_process() -> None:
    first = start_telemetry("a", _settings()).tracer.start_span("parent")
    child = start_telemetry("b", _settings()).tracer.start_span("child", context_from(traceparent_of(first)))
    assert trace_id(child) == trace_id(first) != "0" * 32
    assert traceparent_of(first) == f"00-{trace_id(first)}-{span_id(first)}-01"


@pytest.mark.parametrize("text", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 10_000])
def test_malformed_traceparent_starts_a_trace(text: str) -> None:
    span = start_telemetry("a", _settings()).tracer.start_span("root", context_from(text))
    assert trace_id(span) != "0" * 32


def test_traceparent_is_found_among_metadata() -> None:
    assert traceparent_in((("x-bin", b"\x00"), ("traceparent", PARENT))) == PARENT
    assert traceparent_in(None) == traceparent_in(()) == ""


def test_collector_that_is_away_costs_no_time_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    telemetry = start_telemetry("pagemesh-probe", _settings("127.0.0.1:1"))
    start_s = time.perf_counter()
    for _ in range(2000):
        telemetry.tracer.start_span("step").end()
    assert time.perf_counter() - start_s < 1.0
    start_s = time.perf_counter()
    telemetry.shutdown()
    assert time.perf_counter() - start_s < 2.5
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines in (
        ["traces are not exported; spans are dropped"],
        ["traces are not exported; spans are dropped", "spans were lost"],
    )


async def test_metrics_are_served_from_the_given_registry() -> None:
    registry = CollectorRegistry()
    Counter("pagemesh_probe_steps", "Steps", registry=registry).inc(3)
    port = start_metrics(ServiceSettings(metrics_listen="127.0.0.1:0"), registry)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    assert "pagemesh_probe_steps_total 3.0" in page
    assert "process_resident_memory_bytes" in page
    (num_tasks,) = [line for line in page.splitlines() if line.startswith("pagemesh_process_tasks ")]
    assert float(num_tasks.split()[1]) == len(asyncio.all_tasks())
    with pytest.raises(BindError, match="already in use"):
        start_metrics(ServiceSettings(metrics_listen=f"127.0.0.1:{port}"), CollectorRegistry())
    assert start_metrics(ServiceSettings(metrics_listen=""), CollectorRegistry()) == 0
