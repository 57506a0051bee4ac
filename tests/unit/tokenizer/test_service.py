"""The adapter: one span under the caller's, calls counted by how they end."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from pagemesh.v1 import tokenizer_pb2
from services.contract.errors import MeshError, Reason
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.service import TokenizerServicer
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.wiring import build, load

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Call:
    """What the adapter asks of a gRPC call."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("traceparent", f"00-{TRACE}-{PARENT}-01"),)


@dataclass(frozen=True)
class Served:
    """A servicer and what it tells."""

    servicer: TokenizerServicer
    registry: CollectorRegistry
    spans: InMemorySpanExporter
    worker: TemplateWorker

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> tokenizer_pb2.EncodeResponse:
        return await self.servicer.Encode(request, Call())  # type: ignore[arg-type]

    async def decode(self, ids: list[int]) -> tokenizer_pb2.DecodeResponse:
        return await self.servicer.Decode(tokenizer_pb2.DecodeRequest(ids=ids), Call())  # type: ignore[arg-type]

    def count(self, outcome: str) -> float:
        labels = {"method": "Encode", "outcome": outcome}
        return self.registry.get_sample_value("pagemesh_tokenizer_requests_total", labels) or 0.0


@pytest.fixture
async def served(real_folder: Path) -> AsyncIterator[Served]:
    loaded = load(str(real_folder))
    assert loaded.template is not None
    worker = TemplateWorker(loaded.template, time_limit_s=5)
    await worker.start()
    registry, spans, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    metrics = TokenizerMetrics(registry)
    with ThreadPoolExecutor(1) as threads:
        encoder, frozen = await build(TokenizerSettings(), loaded, worker, (threads, threads), metrics)
        yield Served(
            TokenizerServicer(frozen, encoder, metrics, provider.get_tracer("test")), registry, spans, worker
        )
    await worker.stop()


async def test_an_encode_is_one_span_under_its_callers(served: Served) -> None:
    response = await served.encode(tokenizer_pb2.EncodeRequest(text="hello world"))
    (span,) = served.spans.get_finished_spans()
    assert span.name == "encode" and span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.input_tokens"] == len(response.ids)
    assert served.count("ok") == 1
    assert served.registry.get_sample_value("pagemesh_tokenizer_encode_seconds_count") == 1


async def test_a_callers_fault_is_no_error_of_the_server(served: Served) -> None:
    with pytest.raises(MeshError) as caught:
        await served.encode(tokenizer_pb2.EncodeRequest(text=""))
    assert caught.value.reason is Reason.INVALID_FIELD
    (span,) = served.spans.get_finished_spans()
    assert span.status.status_code is StatusCode.UNSET and not span.events
    assert span.attributes is not None and span.attributes["error.type"] == "INVALID_FIELD"
    assert served.count("INVALID_FIELD") == 1


async def test_a_cancelled_call_ends_its_span_and_is_counted(served: Served) -> None:
    running = asyncio.create_task(served.encode(tokenizer_pb2.EncodeRequest(text="slow " * 4000)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(served.spans.get_finished_spans()) == 1
    assert served.count("cancelled") == 1
    assert (await served.encode(tokenizer_pb2.EncodeRequest(text="next"))).ids


async def test_a_request_cannot_raise_the_limit(served: Served) -> None:
    with pytest.raises(MeshError, match="the limit is 8192"):
        await served.encode(tokenizer_pb2.EncodeRequest(text=" a" * 9000, max_tokens=1_000_000))


async def test_no_decoded_text_is_larger_than_a_reply_may_be(served: Served) -> None:
    ids = list((await served.encode(tokenizer_pb2.EncodeRequest(text=" extraordinary"))).ids)
    small = await served.decode(ids * 1000)
    assert small.text == " extraordinary" * 1000
    for bad, words in (
        (ids * 100_000, "the text has 1400000 bytes"),
        ([0] * 300_000, "there are 300000 ids"),
    ):
        with pytest.raises(MeshError, match=words) as caught:
            await served.decode(bad)
        assert (caught.value.reason, caught.value.field) == (Reason.TOO_LONG, "ids")
