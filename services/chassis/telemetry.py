"""Traces and the metrics endpoint of one process: every span is recorded, none costs a request time.

Nothing here is global: whoever traces is given the tracer. Without an endpoint spans have ids and go nowhere.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

from services.chassis.address import join_address, split_address
from services.chassis.bind import BindError, check_free
from services.chassis.settings import ServiceSettings

TRACEPARENT = "traceparent"
EXPORT_TIMEOUT_S = 1.0
FLUSH_S = 2.0
"""A collector that is away delays the process's end by no more."""
QUEUE_SPANS = 8192
BATCH_SPANS = 512
BATCH_MS = 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The process's tracer and the end of its exporting."""

    tracer: Tracer
    provider: TracerProvider
    exporter: "QuietExporter | None"

    def shutdown(self) -> None:
        """Sends what is left, for at most FLUSH_S. Blocks; call it off the event loop."""
        if self.exporter is not None:
            self.exporter.is_last_call = True
        flush = threading.Thread(target=self.provider.shutdown, name="telemetry-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_S)
        if flush.is_alive():
            logger.warning("spans were lost", extra={"waited_s": FLUSH_S})


def start_telemetry(service_name: str, settings: ServiceSettings) -> Telemetry:
    """A tracer for service_name ("pagemesh-engine"), exporting to settings.otlp_endpoint if set."""
    resource = Resource.create({SERVICE_NAME: service_name, SERVICE_INSTANCE_ID: settings.instance_id})
    # Always on: a caller's unsampled flag must not punch holes into the receipts' span trees.
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    exporter = None
    if settings.otlp_endpoint:
        exporter = QuietExporter(_otlp_exporter(settings.otlp_endpoint), settings.otlp_endpoint)
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=QUEUE_SPANS,
                schedule_delay_millis=BATCH_MS,
                max_export_batch_size=BATCH_SPANS,
            )
        )
    return Telemetry(provider.get_tracer("pagemesh"), provider, exporter)


def start_metrics(settings: ServiceSettings, registry: CollectorRegistry) -> int:
    """Serves registry, with the process's own figures, over HTTP on settings.metrics_listen.

    Returns the port, 0 if metrics are off. Raises BindError. Call it on the event loop; scrapes run in a
    thread of their own.
    """
    if not settings.metrics_listen:
        return 0
    host, port = split_address(settings.metrics_listen)
    check_free(host, port)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    loop = asyncio.get_running_loop()
    num_tasks = Gauge("pagemesh_process_tasks", "Tasks on the event loop", registry=registry)
    num_tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise BindError(join_address(host, port), error.strerror or str(error)) from error
    return int(server.server_port)


class QuietExporter(SpanExporter):
    """Says once that the collector is away and once that it is back, not once per batch."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._is_up = True
        self.is_last_call = False
        """Once the process ends, a collector that is away is not tried again for every batch."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_last_call and not self._is_up:
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        is_up = result is SpanExportResult.SUCCESS
        if is_up != self._is_up:
            state = "traces are exported again" if is_up else "traces are not exported; spans are dropped"
            logger.warning(state, extra={"endpoint": self._endpoint})
        self._is_up = is_up
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def traceparent_of(span: Span) -> str:
    """W3C traceparent of a span, for a peer's child spans."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def context_from(traceparent: str) -> Context:
    """Parent context for a span. Empty or malformed input gives an empty context: the span starts a trace."""
    return TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent}, context=Context())


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """traceparent among a call's metadata, or ""."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""


def trace_id(span: Span) -> str:
    """32 hexadecimal digits."""
    return f"{span.get_span_context().trace_id:032x}"


def span_id(span: Span) -> str:
    """16 hexadecimal digits."""
    return f"{span.get_span_context().span_id:016x}"


def _otlp_exporter(endpoint: str) -> OTLPSpanExporter:
    # Its own log repeats every failed try; QuietExporter says it instead.
    logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").setLevel(logging.CRITICAL)
    is_plain = not endpoint.startswith("https://")
    return OTLPSpanExporter(endpoint=endpoint, insecure=is_plain, timeout=EXPORT_TIMEOUT_S)
