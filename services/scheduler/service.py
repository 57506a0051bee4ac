"""The gRPC face of the scheduler: Place, Explain, GetQueueState."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pagemesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.chassis.stream import MessageStream
from services.contract.errors import MeshError, Reason
from services.contract.priority import Priority
from services.contract.status import abort
from services.scheduler import messages
from services.scheduler.core.commands import Command
from services.scheduler.core.request import Request
from services.scheduler.switchboard import Switchboard

Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """One Place stream per gateway."""

    def __init__(self, board: Switchboard, scheduler_id: str) -> None:
        self._board = board
        self._scheduler_id = scheduler_id

    async def Place(self, request_iterator: AsyncIterator[Any], context: Context) -> None:  # type: ignore[override]
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=scheduler_pb2.PlaceResponse()
        ) as stream:
            first = await anext(stream, None)
            if first is not None and not first.HasField("hello"):
                await abort(
                    context, MeshError(Reason.INVALID_FIELD, "the first message has no hello", field="hello")
                )
            if first is not None and stream.is_open:
                await self._serve(stream, first)

    async def _serve(self, stream: Any, first: scheduler_pb2.PlaceRequest) -> None:
        stream_id = self._board.connect_gateway(stream, self._scheduler_id)
        gateway = {"gateway": first.hello.gateway_id, "boot": first.hello.boot_id}
        logger.info("gateway connected", extra=gateway)
        try:
            self._take(stream_id, first)
            async for message in stream:
                self._take(stream_id, message)
        finally:
            self._board.disconnect_gateway(stream_id)
            logger.info("gateway disconnected", extra={**gateway, "cause": stream.reason})

    def _take(self, stream_id: int, message: scheduler_pb2.PlaceRequest) -> None:
        self._board.apply(lambda now: self._events(stream_id, message, now))

    def _events(self, stream_id: int, message: scheduler_pb2.PlaceRequest, now: float) -> list[Command]:
        """Reach first: what is enqueued with it must not go where its gateway cannot follow."""
        core, commands = self._board.core, list[Command]()
        for reach in message.reach:
            where = (reach.engine_id, reach.engine_boot_id)
            commands += core.reach(stream_id, *where, reach.is_reachable, now)
        requests: list[Request] = []
        for enqueue in message.enqueue:
            try:
                requests.append(messages.to_request(enqueue))
            except MeshError as error:
                logger.warning("enqueue refused", extra={"field": error.field, "cause": error.message})
                commands += core.refuse_invalid(stream_id, messages.nameless(enqueue), now)
        if requests:
            commands += core.enqueue(stream_id, requests, now)
        for withdraw in message.withdraw:
            commands += core.withdraw(stream_id, withdraw.handle, now)
        return commands

    async def Explain(self, request: Any, context: Context) -> scheduler_pb2.SchedulerServiceExplainResponse:
        wanted = messages.to_request(request.enqueue)
        return messages.from_explanation(self._board.core.explain(wanted, self._board.now()))

    async def GetQueueState(self, request: Any, context: Context) -> scheduler_pb2.GetQueueStateResponse:
        core, now = self._board.core, self._board.now()
        queues = [
            messages.from_class(priority, *core.waiting(priority), core.oldest_age_s(priority, now))
            for priority in Priority
        ]
        engines = [messages.from_engine(engine) for engine in core.engines()]
        return scheduler_pb2.GetQueueStateResponse(
            queues=queues, engines=engines, boot_id=self._board.boot_id
        )
