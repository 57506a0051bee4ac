"""A whole process on the chassis, for tests that need one to signal, freeze or kill.

Run echoes every cancel as an ended; the model of CountTokens says what to do: "wait" answers after SIGTERM.
"""

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic import Field

from pagemesh.v1 import engine_pb2, engine_pb2_grpc, gateway_pb2, gateway_pb2_grpc
from services.chassis.entry import run_process
from services.chassis.log import start_logging
from services.chassis.server import Server
from services.chassis.settings import ServiceSettings, load_settings
from services.chassis.stream import MessageStream, StreamTiming
from services.chassis.telemetry import start_telemetry

FAST = StreamTiming(heartbeat_s=0.1, silence_s=0.8)


class EchoSettings(ServiceSettings):
    service: ClassVar[str] = "echo"
    is_ready_on_signal: bool = Field(False, description="The check `warm` holds only after SIGUSR1")
    drain_work_s: float = Field(0.0, ge=0, description="Seconds that draining takes")
    fail_at_start: bool = Field(False, description="Raises where a model would be loaded")


class Engine(engine_pb2_grpc.EngineServiceServicer):
    def __init__(self) -> None:
        self.breaks: list[str] = []

    async def Run(self, request_iterator: AsyncIterator[Any], context: Any) -> None:  # type: ignore[override]
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=engine_pb2.RunResponse(), timing=FAST
        ) as stream:
            async for request in stream:
                for cancel in request.cancel:
                    stream.send(engine_pb2.RunResponse(ended=[engine_pb2.Ended(handle=cancel.handle)]))
            self.breaks.append(str(stream.reason))

    async def GetEngineInfo(self, request: Any, context: Any) -> Any:
        info = engine_pb2.EngineInfo(engine_id=";".join(self.breaks))
        return engine_pb2.GetEngineInfoResponse(info=info)


class Gateway(gateway_pb2_grpc.GatewayServiceServicer):
    def __init__(self, draining: asyncio.Event) -> None:
        self._draining = draining

    async def CountTokens(self, request: Any, context: Any) -> Any:
        if request.model == "wait":
            await self._draining.wait()
        if request.model == "frozen objects":
            return gateway_pb2.CountTokensResponse(num_tokens=gc.get_freeze_count())
        return gateway_pb2.CountTokensResponse(num_tokens=1)


class UnusableModel(Exception):
    """As a model folder's error: one line."""


async def main() -> int:
    settings = load_settings(EchoSettings)
    start_logging("pagemesh-echo", settings.log_level)
    if settings.fail_at_start:
        raise UnusableModel("/nope: no such folder; name a model folder")
    server = Server(settings, "pagemesh-echo", start_telemetry("pagemesh-echo", settings))
    draining = asyncio.Event()
    server.add(engine_pb2_grpc.add_EngineServiceServicer_to_server, Engine(), "pagemesh.v1.EngineService")
    add_gateway = gateway_pb2_grpc.add_GatewayServiceServicer_to_server
    server.add(add_gateway, Gateway(draining), "pagemesh.v1.GatewayService")
    server.readiness.set("warm", False)
    server.readiness.set_model("smollm2", False)

    def warm_up() -> None:
        server.readiness.set("warm", True)

    if settings.is_ready_on_signal:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, warm_up)
    else:
        warm_up()

    async def drain() -> None:
        draining.set()
        await asyncio.sleep(settings.drain_work_s)
        print("drained", file=sys.stderr, flush=True)

    return await server.run(on_drain=drain)


if __name__ == "__main__":
    run_process("pagemesh-echo", main, expected=(UnusableModel,))
