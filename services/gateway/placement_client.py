"""Place streams, one per scheduler: work that waits for a ticket, and what the fleet offers per model.

It chooses a scheduler for each enqueue and hands answers to their owners; it decides nothing about requests.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from pagemesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.chassis.backoff import Backoff
from services.chassis.stream import MessageStream, StreamBroken
from services.contract.errors import unavailable
from services.contract.status import from_rpc_error
from services.gateway.request_words import Placement, PlaceRefusal, Ticket

HELLO_S = 2.0
EXPLAIN_TIMEOUT_S = 2.0

PlaceStream = MessageStream[scheduler_pb2.PlaceRequest, scheduler_pb2.PlaceResponse]
EnqueueWords = Callable[[int], scheduler_pb2.Enqueue]
"""Makes the enqueue's message for a handle, at the moment it is sent."""

logger = logging.getLogger(__name__)

_REFUSALS = {
    scheduler_pb2.PLACE_REFUSAL_QUEUE_FULL: PlaceRefusal.QUEUE_FULL,
    scheduler_pb2.PLACE_REFUSAL_QUEUE_WAIT: PlaceRefusal.QUEUE_WAIT,
    scheduler_pb2.PLACE_REFUSAL_DEADLINE: PlaceRefusal.DEADLINE,
    scheduler_pb2.PLACE_REFUSAL_NO_ENGINE: PlaceRefusal.NO_ENGINE,
    scheduler_pb2.PLACE_REFUSAL_TOO_LARGE: PlaceRefusal.TOO_LARGE,
    scheduler_pb2.PLACE_REFUSAL_DRAINING: PlaceRefusal.DRAINING,
}


class PlaceOwner(Protocol):
    """Who enqueued and hears the answer, by place id."""

    def placed(self, place_id: int, placement: Placement) -> None: ...
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


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the fleet offers for one model."""

    revision: str
    num_engines: int
    max_model_len: int
    max_pool_tokens: int
    max_sequences: int
    vocab_size: int
    block_size: int


class PlacementClient:
    """All Place streams of this gateway."""

    def __init__(
        self,
        hello: scheduler_pb2.PlaceHello,
        unreachable: Callable[[], list[tuple[str, str]]],
        clock: Callable[[], float],
        settle_s: float,
    ) -> None:
        """settle_s is how long a scheduler that has just come up may take to find its engines."""
        self._hello = hello
        self._unreachable = unreachable
        self._clock = clock
        self._settle_s = settle_s
        self._settled_s = clock() + settle_s
        self._last_limits: dict[str, ModelLimits] = {}
        self._links: list[SchedulerLink] = []
        self._homeless: list[Waiting] = []
        self._owners: dict[PlaceOwner, str] = {}
        self._changed = asyncio.Event()

    async def explain(self, enqueue: scheduler_pb2.Enqueue) -> scheduler_pb2.SchedulerServiceExplainResponse:
        """One scheduler's estimate. Raises MeshError."""
        request = scheduler_pb2.SchedulerServiceExplainRequest(enqueue=enqueue)
        for link in self._links:
            if link.is_up:
                try:
                    return await link.stub.Explain(request, timeout=EXPLAIN_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    raise from_rpc_error(error) from error
        raise unavailable("no scheduler answers")

    async def keep(self, channel: grpc.aio.Channel, address: str, rng: random.Random) -> None:
        """Holds a Place stream to one scheduler, over its restarts."""
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        link = SchedulerLink(address, self, stub)
        backoff = Backoff(rng)
        self._links.append(link)
        try:
            while True:
                if await link.run(self._hello):
                    backoff.reset()
                await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._links.remove(link)

    @property
    def is_up(self) -> bool:
        """At least one scheduler answers."""
        return any(link.is_up for link in self._links)

    def models(self) -> dict[str, ModelLimits]:
        """All models that schedulers name, with the largest engine's limits."""
        offers: dict[str, ModelLimits] = {}
        for link in self._links:
            for name, limits in link.models.items() if link.is_up else ():
                offers[name] = max(limits, offers.get(name, limits), key=_size)
        return offers

    def limits(self, model: str) -> ModelLimits | None:
        """Limits of a model that has engines. While no scheduler answers, what the last one said."""
        limits = self.models().get(model) if self.is_up else self._last_limits.get(model)
        return limits if limits is not None and limits.num_engines else None

    async def wait_limits(self, model: str) -> ModelLimits | None:
        """As limits, but gives schedulers that have just come up a moment to find their engines."""
        try:
            async with asyncio.timeout_at(self._settled_s):
                while (limits := self.limits(model)) is None:
                    await self._changed.wait()
        except TimeoutError:
            return self.limits(model)
        return limits

    def watch(self, owner: PlaceOwner, model: str) -> None:
        """From now on owner hears whether the model is served; the first word comes at once."""
        self._owners[owner] = model
        owner.serving(self._is_served(model))

    def unwatch(self, owner: PlaceOwner) -> None:
        """The reverse of watch."""
        self._owners.pop(owner, None)

    def enqueue(self, waiting: Waiting) -> None:
        """Sends it to the least loaded scheduler that takes work and knows engines of its model.

        While none is up it waits for the next one.
        """
        candidates = [link for link in self._links if link.is_up]
        if not candidates:
            self._homeless.append(waiting)
            return
        best = min(
            candidates,
            key=lambda link: (link.is_draining, not link.serves(waiting.model), link.num_outstanding),
        )
        best.enqueue(waiting)

    def withdraw(self, waiting: Waiting) -> None:
        """Takes it back, or the tickets that came of it."""
        if waiting.link is not None:
            waiting.link.withdraw(waiting)
        elif waiting in self._homeless:
            self._homeless.remove(waiting)

    def report_reach(self, engine_id: str, boot_id: str, is_reachable: bool) -> None:
        """Tells every scheduler how the Run stream to an engine stands."""
        reach = _reach(engine_id, boot_id, is_reachable)
        for link in self._links:
            link.send(scheduler_pb2.PlaceRequest(reach=[reach]))

    def link_changed(self) -> None:
        """A link went up or down, or its models changed."""
        if self.is_up:
            self._last_limits |= self.models()
            homeless, self._homeless = self._homeless, []
            for waiting in homeless:
                self.enqueue(waiting)
        self._changed.set()
        self._changed = asyncio.Event()
        served: dict[str, bool] = {}
        for owner, model in list(self._owners.items()):
            if model not in served:
                served[model] = self._is_served(model)
            owner.serving(served[model])

    def _is_served(self, model: str) -> bool:
        return any(link.is_up and link.serves(model) for link in self._links)

    def link_up(self, link: "SchedulerLink") -> None:
        """A new stream knows nothing: it hears which engines are out of reach."""
        if not any(other.is_up for other in self._links if other is not link):
            self._settled_s = self._clock() + self._settle_s
        for engine_id, boot_id in self._unreachable():
            link.send(scheduler_pb2.PlaceRequest(reach=[_reach(engine_id, boot_id, False)]))


@dataclass(eq=False, slots=True)
class SchedulerLink:
    """The Place stream to one scheduler address."""

    address: str
    client: PlacementClient
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
            self.client.link_up(self)
            self._receive(first)
            self.client.link_changed()
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
        self.client.link_changed()

    def _receive(self, message: scheduler_pb2.PlaceResponse) -> None:
        if message.has_models:
            self.models = {state.model: _limits(state) for state in message.models}
            self.client.link_changed()
        for placed in message.placed:
            waiting = self._waiting.pop(placed.handle, None)
            if waiting is not None:
                waiting.owner.placed(waiting.place_id, _placement(placed))
        for refused in message.refused:
            waiting = self._waiting.pop(refused.handle, None)
            if waiting is not None:
                refusal = _REFUSALS.get(refused.refusal, PlaceRefusal.INVALID)
                self.is_draining |= refusal is PlaceRefusal.DRAINING
                waiting.link = None
                waiting.owner.place_refused(waiting.place_id, refusal, refused.retry_delay_us / 1e6 or None)


async def _first(stream: PlaceStream) -> scheduler_pb2.PlaceResponse | None:
    try:
        async with asyncio.timeout(HELLO_S):
            return await anext(stream, None)
    except TimeoutError:
        return None


def _size(limits: ModelLimits) -> tuple[bool, int, int]:
    return limits.num_engines > 0, limits.max_model_len, limits.num_engines


def _reach(engine_id: str, boot_id: str, is_reachable: bool) -> scheduler_pb2.EngineReach:
    return scheduler_pb2.EngineReach(engine_id=engine_id, engine_boot_id=boot_id, is_reachable=is_reachable)


def _limits(state: scheduler_pb2.ModelState) -> ModelLimits:
    return ModelLimits(
        revision=state.revision,
        num_engines=state.num_engines,
        max_model_len=state.max_model_len,
        max_pool_tokens=state.max_pool_tokens,
        max_sequences=state.max_sequences,
        vocab_size=state.vocab_size,
        block_size=state.block_size,
    )


def _placement(placed: scheduler_pb2.Placed) -> Placement:
    tickets = tuple(
        Ticket(
            scheduler_boot_id=ticket.scheduler_boot_id,
            number=ticket.number,
            engine_boot_id=ticket.engine_boot_id,
            batch_id=ticket.batch_id,
            batch_size=ticket.batch_size,
        )
        for ticket in placed.tickets
    )
    return Placement(placed.engine_id, placed.address, tickets, placed.queued_us, placed.queue_reason)
