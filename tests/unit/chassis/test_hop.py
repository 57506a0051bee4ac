"""Both ends of a hop agree: sizes, keep-alive, metadata, TLS, reflection."""

import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagemesh.gateways import CHANNEL_OPTIONS
from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc
from services.chassis.channels import EXTRA_BYTES, open_channel, shared_options
from services.chassis.server import Server, server_options
from services.chassis.settings import ServiceSettings
from services.chassis.telemetry import start_telemetry
from tests.support.tcp_proxy import TcpProxy

LIMIT = 16 * 2**20 + EXTRA_BYTES


class Gateway(gateway_pb2_grpc.GatewayServiceServicer):
    async def CountTokens(self, request: Any, context: Any) -> Any:
        return gateway_pb2.CountTokensResponse(num_tokens=len(request.text))


class StuckGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Never answers."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def CountTokens(self, request: Any, context: Any) -> Any:
        self.called.set()
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def _request(num_bytes: int) -> gateway_pb2.CountTokensRequest:
    """A request of exactly so many bytes on the wire."""
    request = gateway_pb2.CountTokensRequest(text="x" * (num_bytes - 8))
    request.text += "x" * (num_bytes - request.ByteSize())
    assert request.ByteSize() == num_bytes
    return request


@pytest.mark.parametrize("num_bytes", [4 * 2**20 - 1, 4 * 2**20 + 1, 8 * 2**20, LIMIT])
async def test_messages_up_to_the_limit_pass(start: Any, num_bytes: int) -> None:
    _, channel = await start(gateway=Gateway())
    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
    request = _request(num_bytes)
    assert (await stub.CountTokens(request, timeout=10)).num_tokens == len(request.text)


async def test_message_over_the_limit_is_refused_and_the_channel_lives(start: Any) -> None:
    server, channel = await start(gateway=Gateway())
    careless = grpc.aio.insecure_channel(server.address)
    for dialled in (channel, careless):
        stub = gateway_pb2_grpc.GatewayServiceStub(dialled)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CountTokens(_request(LIMIT + 1), timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(LIMIT) in str(caught.value.details())
        assert (await stub.CountTokens(_request(100), timeout=10)).num_tokens == 98
    await careless.close()


async def test_oversize_metadata_is_refused_and_the_channel_lives(start: Any) -> None:
    _, channel = await start(gateway=Gateway())
    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CountTokens(_request(100), metadata=(("tracestate", "x" * 100_000),), timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    ten_kb = (("tracestate", "x" * 10_000),)
    assert (await stub.CountTokens(_request(100), metadata=ten_kb, timeout=10)).num_tokens == 98


@pytest.mark.parametrize("keepalive_s", [0.5, 1.0, 10.0, 60.0])
def test_servers_allow_pings_well_below_the_interval_of_both_ends(keepalive_s: float) -> None:
    settings = ServiceSettings(keepalive_s=keepalive_s)
    client, server = dict(shared_options(settings)), dict(server_options(settings))
    min_ms = int(server["grpc.http2.min_ping_interval_without_data_ms"])
    assert client["grpc.keepalive_time_ms"] == keepalive_s * 1000
    assert min_ms * 2 <= min(keepalive_s * 1000, CHANNEL_OPTIONS["grpc.keepalive_time_ms"])
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"] == 1
    assert server["grpc.so_reuseport"] == 0


async def test_a_peer_that_is_silent_for_half_an_interval_more_is_given_up(settings: ServiceSettings) -> None:
    brisk = settings.model_copy(update={"keepalive_s": 0.5})
    server = Server(brisk, "pagemesh-test", start_telemetry("pagemesh-test", brisk))
    gateway = StuckGateway()
    server.add(gateway_pb2_grpc.add_GatewayServiceServicer_to_server, gateway, "pagemesh.v1.GatewayService")
    await server.start()
    with TcpProxy() as proxy:
        proxy.target = server.address
        channel = open_channel(proxy.address, settings=brisk)
        call = asyncio.ensure_future(gateway_pb2_grpc.GatewayServiceStub(channel).CountTokens(_request(100)))
        await gateway.called.wait()
        begin_s = time.monotonic()
        proxy.hold()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call, 5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(gateway.cancelled.wait(), 5)
        assert time.monotonic() - begin_s < 2.5
    await channel.close()
    await server.stop()


async def test_tls_is_served_and_checked(settings: ServiceSettings, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl is needed to make a certificate"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = await asyncio.create_subprocess_exec(
        *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await make.wait() == 0
    secure = settings.model_copy(update={"tls_cert": cert, "tls_key": key})
    server = Server(secure, "pagemesh-test", start_telemetry("pagemesh-test", settings))
    add = gateway_pb2_grpc.add_GatewayServiceServicer_to_server
    server.add(add, Gateway(), "pagemesh.v1.GatewayService")
    await server.start()
    trusting = open_channel(server.address, settings=settings.model_copy(update={"tls_ca": cert}))
    plain = open_channel(server.address, settings=settings)
    answer = await gateway_pb2_grpc.GatewayServiceStub(trusting).CountTokens(_request(100), timeout=10)
    assert answer.num_tokens == 98
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway_pb2_grpc.GatewayServiceStub(plain).CountTokens(_request(100), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await trusting.close()
    await plain.close()
    await server.stop()


async def test_buf_curl_finds_the_service_by_reflection(start: Any) -> None:
    server, _ = await start(gateway=Gateway())
    buf = Path(sys.executable).with_name("buf")
    url = f"http://{server.address}/pagemesh.v1.GatewayService/CountTokens"
    curl = await asyncio.create_subprocess_exec(
        *(
            str(buf),
            "curl",
            "--protocol",
            "grpc",
            "--http2-prior-knowledge",
            "--data",
            '{"text": "four"}',
            url,
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problem = await curl.communicate()
    assert curl.returncode == 0, problem.decode()
    assert json.loads(out) == {"numTokens": "4"}
