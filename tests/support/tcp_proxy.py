"""A TCP proxy in front of a process: it counts HTTP/2 frames, resets connections and lets packets vanish.

with TcpProxy() as proxy:
    proxy.target = mesh.address("gateway-0")
    proxy.hold()
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.chassis.address import split_address
from tests.support.http2 import FrameLog

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CALL_TIMEOUT_S = 10.0


class TcpProxy:
    """Runs on a thread of its own; every method may be called from any thread."""

    def __init__(self) -> None:
        self.target = ""
        """host:port that it dials for every connection; may be set after the start."""
        self.from_client = FrameLog()
        """What clients sent, all connections together."""
        self.from_server = FrameLog()
        self.num_connections = 0
        self.is_held = False
        self._pairs: set[tuple[_Side, _Side]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp proxy", daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        """From now on nothing gets through in either direction, and nobody is told."""
        self._do(self._set_held, True)

    def release(self) -> None:
        """What was held goes on, in order."""
        self._do(self._set_held, False)

    def reset(self) -> None:
        """Ends all connections with RST on both sides."""
        self._do(self._reset)

    def _do(self, action: Callable[..., object], *arguments: object) -> None:
        async def act() -> None:
            result = action(*arguments)
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(CALL_TIMEOUT_S)

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _Side(self, self.from_client), "127.0.0.1", 0)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset()

    def _set_held(self, is_held: bool) -> None:
        self.is_held = is_held
        for pair in self._pairs:
            for side in pair:
                side.follow_hold()

    async def _reset(self) -> None:
        for pair in self._pairs:
            for side in pair:
                side.reset()
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next turn

    def connect(self, client: "_Side") -> None:
        """A client has come."""
        self.num_connections += 1
        client.dial = self._loop.create_task(self._dial(client))

    async def _dial(self, client: "_Side") -> None:
        server = _Side(self, self.from_server, client)
        host, port = split_address(self.target)
        try:
            await self._loop.create_connection(lambda: server, host, port)
        except OSError:
            client.reset()
            return
        pair = (client, server)
        self._pairs.add(pair)
        client.join(server, lambda: self._pairs.discard(pair))
        server.join(client, lambda: self._pairs.discard(pair))


class _Side(asyncio.Protocol):
    """One connection of a pair."""

    def __init__(self, proxy: TcpProxy, log: FrameLog, other: "_Side | None" = None) -> None:
        self.dial: asyncio.Task[None] | None = None
        self._proxy = proxy
        self._feed = log.connection(has_preface=other is None)
        self._is_client = other is None
        self._other: _Side | None = None
        self._on_lost: Callable[[], None] = lambda: None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.pause_reading()
        if self._is_client:
            self._proxy.connect(self)

    def join(self, other: "_Side", on_lost: Callable[[], None]) -> None:
        """From now on bytes go over."""
        self._other, self._on_lost = other, on_lost
        self.follow_hold()

    def follow_hold(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._proxy.is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def data_received(self, content: bytes) -> None:
        self._feed(content)
        if self._other is not None and self._other._transport is not None:
            self._other._transport.write(content)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()
        if self._other is not None and self._other._transport is not None:
            self._other._transport.close()

    def reset(self) -> None:
        if self._transport is None:
            return
        plug = self._transport.get_extra_info("socket")
        if not self._transport.is_closing():
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()
