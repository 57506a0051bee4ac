"""All schedulers together: which one is asked for a place, and what the fleet offers per model.

It decides nothing about requests.
"""

import asyncio
import random
from collections.abc import Callable

import grpc

from pagemesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.chassis.backoff import Backoff
from services.contract.errors import unavailable
from services.contract.status import from_rpc_error
from services.gateway.peers.scheduler_link import PlaceOwner, SchedulerLink, Waiting
from services.gateway.peers.scheduler_words import ModelLimits

EXPLAIN_TIMEOUT_S = 2.0


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

    def link_up(self, link: SchedulerLink) -> None:
        """A new stream knows nothing: it hears which engines are out of reach."""
        if not any(other.is_up for other in self._links if other is not link):
            self._settled_s = self._clock() + self._settle_s
        for engine_id, boot_id in self._unreachable():
            link.send(scheduler_pb2.PlaceRequest(reach=[_reach(engine_id, boot_id, False)]))


def _size(limits: ModelLimits) -> tuple[bool, int, int]:
    return limits.num_engines > 0, limits.max_model_len, limits.num_engines


def _reach(engine_id: str, boot_id: str, is_reachable: bool) -> scheduler_pb2.EngineReach:
    return scheduler_pb2.EngineReach(engine_id=engine_id, engine_boot_id=boot_id, is_reachable=is_reachable)
