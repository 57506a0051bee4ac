"""What callers see of undecodable bytes and of errors."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc
from services.contract.errors import MeshError, Reason, invalid_field
from services.contract.status import from_rpc_error

INVALID_UTF8 = b"\x0a\x02\xff\xfe"
"""Field 1, a string, with two bytes that are no UTF-8."""


class Gateway(gateway_pb2_grpc.GatewayServiceServicer):
    def __init__(self) -> None:
        self.num_calls = 0
        self.num_cleaned = 0
        self.error: Exception = invalid_field("model", "no")

    async def CountTokens(self, request: Any, context: Any) -> Any:
        self.num_calls += 1
        if request.model == "raise":
            raise self.error
        return gateway_pb2.CountTokensResponse(num_tokens=3)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.num_calls += 1
        try:
            yield gateway_pb2.GenerateResponse(seq_id=0)
            if request.model == "raise":
                raise self.error
            if request.model == "endless":
                await asyncio.Event().wait()
        finally:
            self.num_cleaned += 1

    async def OpenSession(self, request: Any, context: Any) -> Any:
        return gateway_pb2.OpenSessionResponse(session_id=request.user_id)


class Photofinish(gateway_pb2_grpc.GatewayServiceServicer):
    """Ends every call within two milliseconds of its deadline, each third one well."""

    def __init__(self) -> None:
        self._random = random.Random(5)

    async def Generate(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(max(0.0, context.time_remaining() + self._random.uniform(-0.002, 0.002)))
        if self._random.random() < 1 / 3:
            await context.write(gateway_pb2.GenerateResponse(seq_id=7))
        else:
            raise MeshError(Reason.DEADLINE, "late")


class Seen(logging.Filter):
    """Lets every record pass, and notes it."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def filter(self, record: logging.LogRecord) -> bool:
        self._records.append(record)
        return True


class Writer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers by the reader-writer API."""

    async def Generate(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await context.write(gateway_pb2.GenerateResponse(seq_id=7))
        raise MeshError(Reason.QUEUE_FULL, "full", retry_delay_s=1.5)


async def _raw(channel: grpc.aio.Channel, method: str, content: bytes) -> grpc.aio.AioRpcError:
    path = f"/pagemesh.v1.GatewayService/{method}"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "Generate":
            async for _ in channel.unary_stream(path)(content):
                pass
        else:
            await channel.unary_unary(path)(content)
    return caught.value


@pytest.mark.parametrize("method", ["CountTokens", "Generate", "OpenSession"])
@pytest.mark.parametrize("content", [INVALID_UTF8, b"\xff\xff\xff", b"\x0a\x7f"], ids=["utf8", "tag", "cut"])
async def test_undecodable_bytes_answer_invalid_argument(start: Any, method: str, content: bytes) -> None:
    gateway = Gateway()
    _, channel = await start(gateway=gateway)
    error = await _raw(channel, method, content)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).reason is Reason.UNDECODABLE
    assert gateway.num_calls == 0
    answer = await gateway_pb2_grpc.GatewayServiceStub(channel).CountTokens(gateway_pb2.CountTokensRequest())
    assert answer.num_tokens == 3


@pytest.mark.parametrize("method", ["CountTokens", "Generate"])
async def test_mesh_error_answers_by_the_table(start: Any, method: str) -> None:
    _, channel = await start(gateway=Gateway())
    error = await _raw(channel, method, _raising(method))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    mesh_error = from_rpc_error(error)
    assert (mesh_error.reason, mesh_error.field, mesh_error.message) == (Reason.INVALID_FIELD, "model", "no")


@pytest.mark.parametrize("method", ["CountTokens", "Generate"])
async def test_own_fault_is_internal_without_its_words_and_logged_once(
    start: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway()
    gateway.error = KeyError("a secret prompt")
    _, channel = await start(gateway=gateway)
    error = await _raw(channel, method, _raising(method))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert from_rpc_error(error).reason is Reason.INTERNAL
    assert "secret" not in str(error.details())
    assert [record.message for record in caplog.records if record.exc_info] == ["call failed"]


async def test_long_words_of_any_script_keep_their_code(start: Any) -> None:
    gateway = Gateway()
    gateway.error = MeshError(Reason.TEMPLATE, "я" * 20_000, field="conversation")
    _, channel = await start(gateway=gateway)
    error = await _raw(channel, "CountTokens", _raising("CountTokens"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).reason is Reason.TEMPLATE
    assert len(str(error.details()).encode()) <= 1024


async def test_writer_handlers_keep_their_kind(start: Any) -> None:
    _, channel = await start(gateway=Writer())
    call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())
    assert (await call.read()).seq_id == 7
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = from_rpc_error(caught.value)
    assert (error.reason, error.retry_delay_s) == (Reason.QUEUE_FULL, 1.5)


async def test_unimplemented_methods_stay_unimplemented(start: Any) -> None:
    _, channel = await start(gateway=Gateway())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(gateway_pb2.ListModelsRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_that_passes_at_the_last_write_is_no_fault(
    start: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, channel = await start(gateway=Photofinish())
    stub = gateway_pb2_grpc.GatewayServiceStub(channel)

    async def call(number: int) -> grpc.StatusCode:
        calling = stub.Generate(gateway_pb2.GenerateRequest(), timeout=0.1 + number % 50 / 1000)
        return await calling.code()

    lost: list[logging.LogRecord] = []
    grpc_logger = logging.getLogger("grpc._cython.cygrpc")
    monkeypatch.setattr(grpc_logger, "filters", [Seen(lost), *grpc_logger.filters])
    for _ in range(60):
        codes = await asyncio.gather(*map(call, range(50)))
        assert set(codes) <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK}
        if lost:
            break
    assert lost, "no call met its deadline at its last write"
    assert not caplog.records


async def test_cancelled_stream_runs_its_cleanup(start: Any) -> None:
    gateway = Gateway()
    _, channel = await start(gateway=gateway)
    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
    for count in range(1, 21):
        call = stub.Generate(gateway_pb2.GenerateRequest(model="endless"))
        await call.read()
        call.cancel()
        async with asyncio.timeout(1):
            while gateway.num_cleaned < count:  # noqa: ASYNC110 a generator's cleanup
                await asyncio.sleep(0)


def _raising(method: str) -> bytes:
    request = gateway_pb2.GenerateRequest if method == "Generate" else gateway_pb2.CountTokensRequest
    return request(model="raise").SerializeToString()
