"""The least that a Python gRPC server can spend on a stream: one write of a finished message per step.

`python -m bench.bare_stream STEP_MS NUM_TOKENS` prints its port; it answers Generate and nothing else. What a
gateway costs above it is the gateway's own.
"""

import asyncio
import sys

import grpc

from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc

Context = grpc.aio.ServicerContext[gateway_pb2.GenerateRequest, gateway_pb2.GenerateResponse]


class Rhythm:
    """Wakes all who wait at once, a step after the last time."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._next = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._step_s)
            self._next.set()
            self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()


class BareServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Sends the same token again and again."""

    def __init__(self, rhythm: Rhythm, num_tokens: int) -> None:
        self._rhythm = rhythm
        self._num_tokens = num_tokens

    async def Generate(  # type: ignore[override]
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> None:
        event = gateway_pb2.GenerateResponse(token=gateway_pb2.Token(ids=[1000], text=" word"))
        for _ in range(self._num_tokens):
            await self._rhythm.wait()
            await context.write(event)


async def main() -> None:
    rhythm = Rhythm(float(sys.argv[1]) / 1000)
    server = grpc.aio.server()
    servicer = BareServicer(rhythm, int(sys.argv[2]))  # type: ignore[abstract]  # Generate is enough here
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await rhythm.run()


if __name__ == "__main__":
    asyncio.run(main())
