"""Watches the engines: a Watch stream to each address, redialled with backoff; names are looked up again."""

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterable

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.address import join_address, split_address
from services.chassis.backoff import Backoff
from services.chassis.stream import MessageStream
from services.chassis.tasks import Tasks
from services.contract.errors import MeshError
from services.scheduler import messages
from services.scheduler.core.engines import EngineFacts
from services.scheduler.switchboard import EngineEnd, Switchboard

Dial = Callable[[str], grpc.aio.Channel]
LookUp = Callable[[str], Awaitable[list[str] | None]]
"""Target -> all host:port that it stands for, None if the look-up failed."""

SECOND_WAY_S = 30.0
"""Between tries of an address whose engine is watched under another."""

logger = logging.getLogger(__name__)


class EngineWatch:
    """Keeps a Watch stream to one address."""

    def __init__(self, address: str, board: Switchboard, dial: Dial, hello: engine_pb2.WatchHello) -> None:
        self._address = address
        self._board = board
        self._dial = dial
        self._hello = hello
        self._backoff = Backoff(random.Random())
        self._is_wanted = True
        self._is_said = False
        self.is_up = False

    def stop(self) -> None:
        """Dials no more; a stream that is up goes on."""
        self._is_wanted = False

    async def run(self) -> None:
        """Watches until it is cancelled or stopped."""
        while self._is_wanted:
            pause_s = await self._watch()
            await asyncio.sleep(self._backoff.next_delay_s() if pause_s is None else pause_s)

    async def _watch(self) -> float | None:
        """One call. Returns seconds to wait before the next, None if the backoff says."""
        async with self._dial(self._address) as channel:
            call = engine_pb2_grpc.EngineServiceStub(channel).Watch()
            hello = engine_pb2.WatchRequest(hello=self._hello)
            async with MessageStream.over_call(
                call, heartbeat=engine_pb2.WatchRequest(), hello=hello
            ) as stream:
                first = await anext(stream, None)
                if first is None:
                    self._say("engine not reached", str(stream.reason))
                    return None
                return await self._meet(stream, first)

    def _say(self, what: str, cause: str) -> None:
        """Once per outage, not once per try."""
        if not self._is_said:
            logger.warning(what, extra={"address": self._address, "cause": cause})
            self._is_said = True

    async def _meet(self, stream: EngineEnd, first: engine_pb2.WatchResponse) -> float | None:
        try:
            facts = messages.to_facts(first.hello, self._address)
        except MeshError as error:
            self._say("engine's hello refused", error.message)
            return None
        if self._board.core.is_watched(facts.boot_id):
            return SECOND_WAY_S
        await self._follow(facts, stream, first)
        return None

    async def _follow(self, facts: EngineFacts, stream: EngineEnd, first: engine_pb2.WatchResponse) -> None:
        engine = {"engine": facts.engine_id, "boot": facts.boot_id, "address": self._address}
        logger.info("engine connected", extra=engine)
        self._backoff.reset()
        self.is_up, self._is_said = True, False
        self._board.connect_engine(facts, stream)
        try:
            self._take(facts, first)
            async for message in stream:
                if not self._take(facts, message):
                    break
        except MeshError as error:
            logger.warning("engine's report refused", extra={**engine, "cause": error.message})
        finally:
            self.is_up = False
            self._board.disconnect_engine(facts.boot_id)
            logger.info("engine disconnected", extra={**engine, "cause": stream.reason})

    def _take(self, facts: EngineFacts, message: engine_pb2.WatchResponse) -> bool:
        """False if another process took this one's place."""
        core = self._board.core
        if not core.is_watched(facts.boot_id):
            return False
        if message.HasField("report"):
            report = messages.to_report(message.report)
            self._board.apply(lambda now: core.engine_report(facts.boot_id, report, now))
        return True


class EngineWatches:
    """One EngineWatch per address that the engines' names have now."""

    def __init__(
        self, targets: Iterable[str], look_up: LookUp, watch: Callable[[str], EngineWatch], tasks: Tasks
    ) -> None:
        self._targets = tuple(targets)
        self._look_up = look_up
        self._make = watch
        self._tasks = tasks
        self._watches: dict[str, EngineWatch] = {}

    async def run(self, every_s: float) -> None:
        """Looks names up until it is cancelled."""
        while True:
            await self.look_up_once()
            await asyncio.sleep(every_s)

    async def look_up_once(self) -> None:
        """Starts a watch for what is new. A failed look-up says nothing about what is gone."""
        found = await asyncio.gather(*(self._look_up(target) for target in self._targets))
        addresses = {address for each in found if each is not None for address in each}
        if None not in found:
            self._drop_others(addresses)
        for address in sorted(addresses):
            self._start(address)

    def _start(self, address: str) -> None:
        if address not in self._watches:
            watch = self._watches[address] = self._make(address)
            self._tasks.spawn(watch.run(), f"watch {address}", critical=True)

    def _drop_others(self, addresses: set[str]) -> None:
        """Names flap: a stream that is up proves more than their absence."""
        for address, watch in tuple(self._watches.items()):
            if address not in addresses and not watch.is_up:
                watch.stop()
                del self._watches[address]


async def resolve(target: str) -> list[str] | None:
    """All host:port that a target stands for, None if the look-up failed."""
    host, port = split_address(target)
    if _is_ip(host):
        return [target]
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        logger.warning("engine's name not found", extra={"target": target, "cause": error.strerror})
        return None
    return sorted({join_address(str(info[4][0]), port) for info in infos})


async def as_given(target: str) -> list[str]:
    """The target itself: with TLS the name that is dialled is the name that is verified."""
    return [target]


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
