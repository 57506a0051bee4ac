"""EngineService over gRPC: hands streams to their books. Judges nothing itself."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.stream import MessageStream
from services.contract.errors import MeshError, Reason
from services.contract.status import abort
from services.engine.loop import EngineLoop
from services.engine.run_streams import RunStreams
from services.engine.watchers import Watchers


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that has its model."""

    info: engine_pb2.EngineInfo
    loop: EngineLoop
    runs: RunStreams
    watchers: Watchers


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Answers UNAVAILABLE until the engine is attached."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """The model is there."""
        self._engine = engine

    async def Run(  # type: ignore[override]  # a handler without yield: its return ends the call
        self,
        request_iterator: AsyncIterator[engine_pb2.RunRequest],
        context: "grpc.aio.ServicerContext[engine_pb2.RunRequest, engine_pb2.RunResponse]",
    ) -> None:
        engine = self._engine or await _refuse(context)
        hello = engine_pb2.RunResponse(hello=engine.info)
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=engine_pb2.RunResponse(), hello=hello
        ) as stream:
            number = engine.runs.open(stream)
            try:
                async for request in stream:
                    engine.runs.take(number, request)
                    engine.loop.wake()
            finally:
                engine.runs.close(number)
                engine.loop.wake()

    async def Watch(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[engine_pb2.WatchRequest],
        context: "grpc.aio.ServicerContext[engine_pb2.WatchRequest, engine_pb2.WatchResponse]",
    ) -> None:
        engine = self._engine or await _refuse(context)
        hello = engine_pb2.WatchResponse(hello=engine.info)
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=engine_pb2.WatchResponse(), hello=hello
        ) as stream:
            number = engine.watchers.open(stream)
            try:
                async for request in stream:
                    engine.watchers.take(number, request)
            finally:
                engine.watchers.close(number)

    async def GetEngineInfo(
        self, request: engine_pb2.GetEngineInfoRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> engine_pb2.GetEngineInfoResponse:
        engine = self._engine or await _refuse(context)
        running_set = engine.loop.running_set
        return engine_pb2.GetEngineInfoResponse(
            info=engine.info,
            is_draining=running_set.is_draining,
            num_running=len(running_set.roster.running),
            num_waiting=len(running_set.roster.waiting),
        )


async def _refuse(context: "grpc.aio.ServicerContext[Any, Any]") -> NoReturn:
    await abort(context, MeshError(Reason.UNAVAILABLE, "the model is loading"))
