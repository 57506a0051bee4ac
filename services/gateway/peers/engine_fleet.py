"""Run streams to engines: one per address, dialled when a ticket names it, kept while the engine lives."""

import random
from collections.abc import Callable

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.backoff import Backoff
from services.chassis.tasks import Tasks
from services.gateway.peers.engine_link import Admission, AdmitOwner, EngineLink, ReachFn


class EngineFleet:
    """All Run streams of this gateway."""

    def __init__(
        self,
        *,
        open_channel: Callable[[str], grpc.aio.Channel],
        hello: engine_pb2.RunHello,
        tasks: Tasks,
        rng: random.Random,
        on_reach: ReachFn,
        on_unknown_tokens: Callable[[int], None],
    ) -> None:
        self._open_channel = open_channel
        self._hello = hello
        self._tasks = tasks
        self._rng = rng
        self._on_reach = on_reach
        self._on_unknown_tokens = on_unknown_tokens
        self._links: dict[str, EngineLink] = {}

    def admit(self, address: str, admission: Admission) -> None:
        """Sends it as soon as there is a stream to the process that its ticket names."""
        link = self._links.get(address)
        if link is None:
            backoff = Backoff(self._rng)
            link = EngineLink(address, self._hello, backoff, self._on_reach, self._on_unknown_tokens)
            self._links[address] = link
            self._tasks.spawn(self._keep(link), f"run stream to {address}", critical=True)
        link.admit(admission)

    def cancel(self, address: str, owner: AdmitOwner, choice: int, attempt: int) -> None:
        """Ends an admit, sent or not."""
        link = self._links.get(address)
        if link is not None:
            link.cancel(owner, choice, attempt)

    def release(self, session_key: bytes) -> None:
        """A session ended: every engine may give its blocks back."""
        for link in self._links.values():
            link.release(session_key)

    def unreachable(self) -> list[tuple[str, str]]:
        """engine_id and boot_id of those that do not answer, for a scheduler that has just come up."""
        return [link.unreachable for link in self._links.values() if link.unreachable is not None]

    async def _keep(self, link: EngineLink) -> None:
        channel = self._open_channel(link.address)
        try:
            await link.keep(engine_pb2_grpc.EngineServiceStub(channel))
            if link.unreachable is not None:
                # No longer judged: whoever places there again makes this gateway dial again.
                self._on_reach(*link.unreachable, True)
        finally:
            self._links.pop(link.address, None)
            await channel.close()
