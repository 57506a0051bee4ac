"""What the chassis tests share: settings on free ports, a started server, a channel to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from pagemesh.v1 import engine_pb2_grpc, gateway_pb2_grpc
from services.chassis.channels import open_channel
from services.chassis.server import Server
from services.chassis.settings import ServiceSettings
from services.chassis.telemetry import start_telemetry


@pytest.fixture
def settings() -> ServiceSettings:
    return ServiceSettings(listen="127.0.0.1:0", metrics_listen="")


StartServer = Callable[..., Awaitable[tuple[Server, grpc.aio.Channel]]]


@pytest.fixture
async def start(settings: ServiceSettings) -> AsyncIterator[StartServer]:
    """start(gateway=..., engine=...) -> (server, channel to it)."""
    opened: list[tuple[Server, grpc.aio.Channel]] = []

    async def start(gateway: Any = None, engine: Any = None) -> tuple[Server, grpc.aio.Channel]:
        server = Server(settings, "pagemesh-test", start_telemetry("pagemesh-test", settings))
        if gateway is not None:
            add = gateway_pb2_grpc.add_GatewayServiceServicer_to_server
            server.add(add, gateway, "pagemesh.v1.GatewayService")
        if engine is not None:
            server.add(
                engine_pb2_grpc.add_EngineServiceServicer_to_server, engine, "pagemesh.v1.EngineService"
            )
        await server.start()
        opened.append((server, open_channel(server.address, settings=settings)))
        return opened[-1]

    yield start
    for server, channel in opened:
        await channel.close()
        await server.stop()
