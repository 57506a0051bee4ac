"""The Place stream to one scheduler: enqueues and withdrawals one way, tickets and refusals the other.

It hands answers to their owners; it decides nothing about requests, nor which scheduler is asked.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pagemesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.chassis.stream import MessageStream, StreamBroken
from services.gateway.life.request_words import Placement, PlaceRefusal
from services.gateway.peers.scheduler_words import ModelLimits, model_limits, place_refusal, placement_of

HELLO_S = 2.0

PlaceStream = MessageStream[scheduler_pb2.PlaceRequest, scheduler_pb2.PlaceResponse]
EnqueueWords = Callable[[int], scheduler_pb2.Enqueue]
"""Makes the enqueue's message for a handle, at the moment it is sent."""

logger = logging.getLogger(__name__)


class PlaceOwner(Protocol):
    """Who enqueued and hears the answer, by place id."""

    def placed(self, place_id: int, placement: Placement) -> None: ...
    def queued(self, place_id: int) -> None: ...
    def place_refused(self, place_id: int, refusal: PlaceRefusal, retry_delay_s: float | None) -> None: ...
    def place_broken(self, place_id: int) -> None: ...
    def serving(self, is_served: bool) -> None: ...


@dataclass(eq=False, slots=True)
class Waiting:
    """One enqueue: at a scheduler once it has a link, else waiting for one."""

    owner: PlaceOwner
    model: str
    place_id: int
    words: EnqueueWords
    link: "SchedulerLink | None" = None
    handle: int = 0


class LinkWatcher(Protocol):
    """Who hears that a link changes."""

    def link_up(self, link: "SchedulerLink") -> None: ...
    def link_changed(self) -> None: ...


@dataclass(eq=False, slots=True)
class SchedulerLink:
    """The Place stream to one scheduler address."""

    address: str
    watcher: LinkWatcher
    stub: "scheduler_pb2_grpc.SchedulerServiceAsyncStub"
    models: dict[str, ModelLimits] = field(default_factory=dict)
    is_draining: bool = False
    """It said so; its stream may stay up for as long as its drain takes."""
    _stream: PlaceStream | None = None
    _waiting: dict[int, Waiting] = field(default_factory=dict)
    _last_handle: int = 0

    @property
    def is_up(self) -> bool:
        return self._stream is not None and self._stream.is_open

    @property
    def num_outstanding(self) -> int:
        return len(self._waiting)

    def serves(self, model: str) -> bool:
        limits = self.models.get(model)
        return limits is not None and limits.num_engines > 0

    def enqueue(self, waiting: Waiting) -> None:
        self._last_handle += 1
        waiting.link, waiting.handle = self, self._last_handle
        self._waiting[waiting.handle] = waiting
        self.send(scheduler_pb2.PlaceRequest(enqueue=[waiting.words(waiting.handle)]))

    def withdraw(self, waiting: Waiting) -> None:
        """A `placed` that crosses this finds no owner."""
        self._waiting.pop(waiting.handle, None)
        self.send(scheduler_pb2.PlaceRequest(withdraw=[scheduler_pb2.Withdraw(handle=waiting.handle)]))

    def send(self, message: scheduler_pb2.PlaceRequest) -> None:
        """What is lost with a broken stream is enqueued again when its end is noticed."""
        if self._stream is not None:
            try:
                self._stream.send(message)
            except StreamBroken:
                logger.debug("place stream is down", extra={"scheduler": self.address})

    async def run(self, hello: scheduler_pb2.PlaceHello) -> bool:
        """One call from its hello to its end; False if no hello came."""
        call = self.stub.Place()
        stream = PlaceStream.over_call(
            call, heartbeat=scheduler_pb2.PlaceRequest(), hello=scheduler_pb2.PlaceRequest(hello=hello)
        )
        try:
            first = await _first(stream)
            if first is None or not first.HasField("hello"):
                return False
            logger.info("place stream is up", extra={"scheduler": self.address})
            self._stream = stream
            self.watcher.link_up(self)
            self._receive(first)
            self.watcher.link_changed()
            async for message in stream:
                self._receive(message)
            return True
        finally:
            stream.close()
            self._down(stream.reason or "")
            await stream.wait_closed()

    def _down(self, reason: str) -> None:
        if self._stream is None:
            return
        self._stream, self.is_draining = None, False
        self.models = {}
        waiting, self._waiting = self._waiting, {}
        logger.warning(
            "place stream is down",
            extra={"scheduler": self.address, "cause": reason, "num_waiting": len(waiting)},
        )
        for item in waiting.values():
            item.link = None
            item.owner.place_broken(item.place_id)
        self.watcher.link_changed()

    def _receive(self, message: scheduler_pb2.PlaceResponse) -> None:
        if message.has_models:
            self.models = {state.model: model_limits(state) for state in message.models}
            self.watcher.link_changed()
        for placed in message.placed:
            waiting = self._waiting.pop(placed.handle, None)
            if waiting is not None:
                waiting.owner.placed(waiting.place_id, placement_of(placed))
        for news in message.queue_news:
            if (queued := self._waiting.get(news.handle)) is not None:
                queued.owner.queued(queued.place_id)
        for refused in message.refused:
            waiting = self._waiting.pop(refused.handle, None)
            if waiting is not None:
                refusal = place_refusal(refused)
                self.is_draining |= refusal is PlaceRefusal.DRAINING
                waiting.link = None
                waiting.owner.place_refused(waiting.place_id, refusal, refused.retry_delay_us / 1e6 or None)


async def _first(stream: PlaceStream) -> scheduler_pb2.PlaceResponse | None:
    try:
        async with asyncio.timeout(HELLO_S):
            return await anext(stream, None)
    except TimeoutError:
        return None
