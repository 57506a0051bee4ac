"""Two gateways made of scripts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pagemesh.v1 import gateway_pb2_grpc
from tests.support.fake_gateway import FakeGateway


@pytest.fixture
def gateways() -> Iterator[list[FakeGateway]]:
    fakes = [FakeGateway(), FakeGateway()]
    servers = []
    for fake in fakes:
        server = grpc.server(ThreadPoolExecutor(4))
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
        fake.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
    yield fakes
    for server in servers:
        server.stop(None).wait()


@pytest.fixture
def gateway(gateways: list[FakeGateway]) -> FakeGateway:
    return gateways[0]
