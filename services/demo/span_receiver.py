"""An OTLP collector inside the process: keeps every span it is sent. Serves the demo and tests."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span of one process."""

    service: str
    """service.name of the process."""
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    start_ns: int
    end_ns: int
    attributes: dict[str, object]

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class SpanReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Use as a context manager; processes export to `address`."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="spans"))
        add_servicer = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add_servicer(self, self._server)  # type: ignore[no-untyped-call]
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        received = [
            _span_of(span, _service_name(group.resource))
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += received
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id: str | None = None) -> list[ReceivedSpan]:
        """All spans so far, or one trace's, in the order of their starts."""
        with self._lock:
            found = [span for span in self._spans if trace_id in (None, span.trace_id)]
        return sorted(found, key=lambda span: span.start_ns)

    def wait_for(
        self, trace_id: str, is_enough: Callable[[list[ReceivedSpan]], bool], timeout_s: float = 10.0
    ) -> list[ReceivedSpan]:
        """The trace's spans once they are enough, or at the timeout: exporters send in batches."""
        deadline_s = time.monotonic() + timeout_s
        while not is_enough(self.spans(trace_id)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return self.spans(trace_id)


def _service_name(resource: resource_pb2.Resource) -> str:
    names = [item.value.string_value for item in resource.attributes if item.key == "service.name"]
    return names[0] if names else ""


def _span_of(span: trace_pb2.Span, service: str) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={
            item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value")
            for item in span.attributes
        },
    )
