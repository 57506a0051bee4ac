"""Names of peers become addresses, again and again; each address is kept by one task while it is found."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from services.chassis.address import join_address, split_address
from services.chassis.tasks import Tasks

KeepFn = Callable[[str], Awaitable[None]]
LookUpFn = Callable[[str], Awaitable[list[str]]]
"""Name -> all host:port that it stands for; empty if it cannot be looked up."""

logger = logging.getLogger(__name__)


class Addresses:
    """Follows the addresses behind some host:port, and runs `keep` for each."""

    def __init__(
        self, names: Sequence[str], keep: KeepFn, tasks: Tasks, every_s: float, look_up: LookUpFn
    ) -> None:
        self._names = names
        self._keep = keep
        self._tasks = tasks
        self._every_s = every_s
        self._look_up = look_up
        self._kept: dict[str, asyncio.Task[None]] = {}

    async def follow(self) -> None:
        """Runs until cancelled. A name that cannot be looked up keeps the addresses it had."""
        found: dict[str, list[str]] = {}
        while True:
            for name in self._names:
                found[name] = await self._look_up(name) or found.get(name, [])
            self._update({address for addresses in found.values() for address in addresses})
            if all(_is_numeric(name) for name in self._names):
                return
            await asyncio.sleep(self._every_s)

    def _update(self, addresses: set[str]) -> None:
        for address in sorted(addresses - self._kept.keys()):
            self._kept[address] = self._tasks.spawn(self._run(address), f"peer {address}", critical=True)
        for address in self._kept.keys() - addresses:
            self._kept.pop(address).cancel()

    async def _run(self, address: str) -> None:
        try:
            await self._keep(address)
        except asyncio.CancelledError:
            # An address that is no longer found ends its task; that is no failure of the process.
            if address in self._kept:
                raise


def _is_numeric(name: str) -> bool:
    host, _ = split_address(name)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def look_up(name: str) -> list[str]:
    """All addresses that the system knows for it."""
    host, port = split_address(name)
    if _is_numeric(name):
        return [name]
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.warning("name cannot be looked up", extra={"peer": name, "cause": error.strerror})
        return []
    return sorted({join_address(str(info[4][0]), port) for info in infos})


async def as_given(name: str) -> list[str]:
    """The name itself: with TLS the name that is dialled is the name that is verified."""
    return [name]
