"""A burst of finished gRPC operations is one turn of the loop; everything else stays as it is."""

import asyncio
import functools
import socket

import grpc
import pytest

from services.chassis.event_loop import BurstLoop


class PollerCompletionQueue:
    """Reads one byte a turn, as gRPC's does."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.num_turns = 0

    def handle(self, _: object) -> None:
        self.sock.recv(1)
        self.num_turns += 1


def turns_of(burst: int, callback_of, num_rounds: int = 3) -> int:
    """Turns that rounds of so many bytes take."""
    with asyncio.Runner(loop_factory=BurstLoop) as runner:
        loop = runner.get_loop()
        theirs, ours = socket.socketpair()
        queue = PollerCompletionQueue(ours)
        loop.add_reader(ours, callback_of(queue))

        async def write() -> None:
            for _ in range(num_rounds):
                theirs.send(bytes(burst))
                for _ in range(burst + 2):
                    await asyncio.sleep(0)

        runner.run(write())
        loop.remove_reader(ours)
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        theirs.close()
        ours.close()
        return queue.num_turns


def test_a_burst_is_one_turn_and_nothing_is_left():
    for burst in (1, 2, 7):
        assert turns_of(burst, lambda queue: functools.partial(queue.handle, None)) == 3


def test_a_reader_of_another_kind_gets_every_byte():
    assert turns_of(5, lambda queue: lambda: queue.handle(None)) == 15


def test_grpc_waits_on_a_reader_that_the_loop_knows():
    """Should its name or its ways change, the loop is as good as asyncio's own, and this says so."""
    readers = []

    class Watched(BurstLoop):
        def _add_reader(self, fd, callback, *args):
            readers.append(getattr(callback, "__qualname__", ""))
            return super()._add_reader(fd, callback, *args)

    async def serve() -> None:
        server = grpc.aio.server()
        await server.start()
        await server.stop(0)

    with asyncio.Runner(loop_factory=Watched) as runner:
        runner.run(serve())
    assert "BurstLoop.add_reader.<locals>.<lambda>" in readers
