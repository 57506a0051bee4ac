"""The event loop of a process that speaks gRPC: a burst of finished operations costs one turn."""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, TypeVarTuple

Arguments = TypeVarTuple("Arguments")

_GRPC_QUEUE = "PollerCompletionQueue"


class BurstLoop(asyncio.SelectorEventLoop):
    """grpc.aio writes a byte to a socket of its own for every finished operation and reads one byte a turn.

    The first byte's turn completes all that has finished, and the turns of the others find nothing: they are
    read with the first.
    """

    def add_reader(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        """As the base class has it, but for grpc.aio's own socket."""
        owner = getattr(getattr(callback, "func", None), "__self__", None)
        if isinstance(fd, socket.socket) and type(owner).__name__ == _GRPC_QUEUE:
            super().add_reader(fd, lambda: _read_burst(fd, callback, *args))
        else:
            super().add_reader(fd, callback, *args)


def _read_burst(sock: socket.socket, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
    """An operation is queued before its byte is written: all but one may go before the queue is read."""
    (num_bytes,) = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))
    if num_bytes > 1:
        sock.recv(num_bytes - 1)
    callback(*args)
