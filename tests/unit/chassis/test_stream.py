"""The laws of the streams: on real calls over loopback, and on a transport whose peer is played."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.stream import MessageStream, StreamBroken, StreamTiming

FAST = StreamTiming(heartbeat_s=0.05, silence_s=0.4)
Run = MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse]
Served = MessageStream[engine_pb2.RunResponse, engine_pb2.RunRequest]


class PlayedPeer:
    """A transport; `incoming` is what the peer says, None its end."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[Any] = []
        self.is_cancelled = False
        self.window = asyncio.Event()
        self.window.set()

    async def read(self) -> Any:
        message = await self.incoming.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, message: Any) -> None:
        await self.window.wait()
        self.written.append(message)

    def cancel(self) -> None:
        self.is_cancelled = True


def _request(handle: int) -> engine_pb2.RunRequest:
    return engine_pb2.RunRequest(cancel=[engine_pb2.Cancel(handle=handle)])


def _response(handle: int) -> engine_pb2.RunResponse:
    return engine_pb2.RunResponse(ended=[engine_pb2.Ended(handle=handle)])


def _over(peer: PlayedPeer, timing: StreamTiming = FAST) -> Run:
    return MessageStream(peer, engine_pb2.RunRequest(), timing)


async def _until(condition: Callable[[], bool], timeout_s: float = 3.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 what is awaited lies beyond the loop
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def no_task_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.getMessage() == "stream task failed"]


class Engine(engine_pb2_grpc.EngineServiceServicer):
    """Serves each Run with `serve` and remembers the streams."""

    def __init__(self, serve: Callable[[Served], Awaitable[None]], timing: StreamTiming = FAST) -> None:
        self._serve = serve
        self._timing = timing
        self.streams: list[Served] = []

    async def Run(self, request_iterator: AsyncIterator[Any], context: Any) -> None:  # type: ignore[override]
        hello = engine_pb2.RunResponse(hello=engine_pb2.EngineInfo(boot_id="b"))
        async with MessageStream.over_context(
            request_iterator, context, heartbeat=engine_pb2.RunResponse(), hello=hello, timing=self._timing
        ) as stream:
            self.streams.append(stream)
            await self._serve(stream)


async def _echo(stream: Served) -> None:
    async for request in stream:
        for cancel in request.cancel:
            stream.send(_response(cancel.handle))


def _dial(channel: grpc.aio.Channel, timing: StreamTiming = FAST) -> Run:
    call = engine_pb2_grpc.EngineServiceStub(channel).Run()
    hello = engine_pb2.RunRequest(hello=engine_pb2.RunHello(gateway_id="g"))
    return MessageStream.over_call(call, heartbeat=engine_pb2.RunRequest(), hello=hello, timing=timing)


async def test_messages_go_both_ways_in_order_hello_first(start: Any) -> None:
    engine = Engine(_echo)
    _, channel = await start(engine=engine)
    async with _dial(channel) as stream:
        for handle in range(200):
            stream.send(_request(handle))
        assert (await anext(stream)).hello.boot_id == "b"
        got = [(await anext(stream)).ended[0].handle for _ in range(200)]
    assert got == list(range(200))


async def test_idle_stream_stays_open_by_heartbeats_alone(start: Any) -> None:
    engine = Engine(_echo)
    _, channel = await start(engine=engine)
    async with _dial(channel) as stream:
        await anext(stream)
        await asyncio.sleep(2 * FAST.silence_s)
        assert stream.is_open and engine.streams[0].is_open
        assert stream.inbox_depth == 0, "heartbeats are not for the consumer"


async def test_silent_peer_breaks_the_stream_and_its_call_is_cancelled_first() -> None:
    peer = PlayedPeer()
    stream = _over(peer)
    peer.incoming.put_nowait(_response(1))
    await _until(lambda: stream.inbox_depth == 1)
    reason = await stream.wait_closed()
    assert "silent" in reason and peer.is_cancelled
    peer.incoming.put_nowait(_response(2))
    assert [message async for message in stream] == [], "what came before and after is dropped"
    with pytest.raises(StreamBroken, match="silent"):
        stream.send(_request(1))


async def test_silence_is_noticed_in_time() -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    stream = _over(PlayedPeer(), StreamTiming(heartbeat_s=0.05, silence_s=0.2))
    await stream.wait_closed()
    assert 0.2 <= loop.time() - start_s < 0.5


async def test_any_message_counts_as_a_sign_of_life() -> None:
    peer = PlayedPeer()
    stream = _over(peer)
    for _ in range(12):
        await asyncio.sleep(FAST.heartbeat_s)
        peer.incoming.put_nowait(engine_pb2.RunResponse())
    assert stream.is_open
    stream.close()
    await stream.wait_closed()


async def test_peer_that_ends_leaves_what_it_said() -> None:
    peer = PlayedPeer()
    stream = _over(peer)
    for message in (_response(1), _response(2), None):
        peer.incoming.put_nowait(message)
    await _until(lambda: not stream.is_open)
    assert [message.ended[0].handle async for message in stream] == [1, 2]
    assert stream.reason == "ended by the peer"
    await stream.wait_closed()


async def test_reader_does_not_wait_for_the_consumer() -> None:
    peer = PlayedPeer()
    stream = _over(peer)
    for handle in range(1000):
        peer.incoming.put_nowait(_response(handle))
    await _until(lambda: stream.inbox_depth == 1000)
    stream.close()
    assert stream.inbox_depth == 0


async def test_send_does_not_wait_for_a_full_window_and_heartbeats_do_not_pile_up() -> None:
    peer = PlayedPeer()
    stream = _over(peer)
    peer.window.clear()
    for handle in range(100):
        stream.send(_request(handle))
    for _ in range(10):
        await asyncio.sleep(FAST.heartbeat_s)
        peer.incoming.put_nowait(engine_pb2.RunResponse())
    assert 99 <= stream.outbox_depth <= 100
    flushed = asyncio.ensure_future(stream.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    peer.window.set()
    await flushed
    assert [message.cancel[0].handle for message in peer.written if message.ByteSize()] == list(range(100))
    stream.close()
    await stream.wait_closed()


async def test_a_process_that_stood_still_breaks_its_own_end() -> None:
    """Its peer heard nothing for as long, and has broken its end."""
    peer = PlayedPeer()
    stream = _over(peer)
    await asyncio.sleep(0)
    _block(2 * FAST.silence_s)
    await stream.wait_closed()
    assert "stood still" in str(stream.reason)


async def test_a_short_stall_of_our_own_is_not_held_against_the_peer() -> None:
    """Silence seen by a late timer may be messages that lie unread."""
    peer = PlayedPeer()
    stream = _over(peer, StreamTiming(heartbeat_s=0.4, silence_s=1.0))
    await asyncio.sleep(0.5)
    _block(0.6)
    # The timer of 0.8 s comes at 1.1 s, before the reader has had its turn.
    await asyncio.sleep(0.03)
    peer.incoming.put_nowait(engine_pb2.RunResponse())
    await asyncio.sleep(0.6)
    assert stream.is_open
    stream.close()
    await stream.wait_closed()


async def test_server_learns_of_a_cancelled_call_and_the_client_of_a_closed_one(start: Any) -> None:
    ended: list[str] = []

    async def serve(stream: Served) -> None:
        try:
            async for request in stream:
                if request.cancel:
                    stream.send(_response(9))
                    await stream.flush()
                    stream.close("done")
        finally:
            ended.append(str(stream.reason))

    engine = Engine(serve)
    _, channel = await start(engine=engine)
    stream = _dial(channel)
    await anext(stream)
    stream.close()
    await stream.wait_closed()
    await _until(lambda: len(ended) == 1)

    stream = _dial(channel)
    stream.send(_request(1))
    handles = [message.ended[0].handle async for message in stream if message.ended]
    assert handles == [9], "what was flushed before the close arrives"
    assert await stream.wait_closed() == "ended by the peer"


async def test_failed_call_says_why(start: Any) -> None:
    _, channel = await start(engine=engine_pb2_grpc.EngineServiceServicer())
    stream = _dial(channel)
    assert [message async for message in stream] == []
    assert "UNIMPLEMENTED" in await stream.wait_closed()


async def test_closed_channel_breaks_the_stream(start: Any) -> None:
    _, channel = await start(engine=Engine(_echo))
    stream = _dial(channel, StreamTiming())
    await anext(stream)
    await channel.close()
    async with asyncio.timeout(1):
        assert [message async for message in stream] == []
        assert await stream.wait_closed() == "cancelled"


async def test_undecodable_message_ends_the_stream_alone(start: Any) -> None:
    engine = Engine(_echo)
    _, channel = await start(engine=engine)
    good = _dial(channel)
    await anext(good)
    call = channel.stream_stream("/pagemesh.v1.EngineService/Run")()
    await call.write(b"\xff\xff\xff")
    await _until(lambda: len(engine.streams) == 2 and not engine.streams[1].is_open)
    assert "DecodeError" in str(engine.streams[1].reason)
    good.send(_request(4))
    assert (await anext(good)).ended[0].handle == 4
    await good.__aexit__()


async def test_an_end_while_a_write_is_under_way_reaches_the_peer(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that end it come while the hello is being written: gRPC takes no status before that is over."""
    _, channel = await start(engine=Engine(_echo, StreamTiming()))
    for _ in range(20):
        call = channel.stream_stream("/pagemesh.v1.EngineService/Run")()
        await call.write(b"\xff\xff\xff")
        async with asyncio.timeout(3):
            while await call.read() is not grpc.aio.EOF:
                pass
            assert await call.code() is grpc.StatusCode.OK
    assert not [record for record in caplog.records if record.name.startswith("grpc")]


async def test_a_write_that_never_ends_holds_the_end_for_a_second_at_most() -> None:
    peer = PlayedPeer()
    peer.window.clear()
    stream = _over(peer)
    stream.send(_request(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    start_s = asyncio.get_running_loop().time()
    stream.close()
    stream_down_s = asyncio.get_running_loop().time() - start_s
    await stream.wait_closed()
    assert stream_down_s < 0.1 and not stream.is_open
    assert 0.9 <= asyncio.get_running_loop().time() - start_s < 1.5


async def test_undecodable_answer_breaks_the_stream() -> None:
    async def babble(requests: Any, context: Any) -> None:
        await context.write(b"\xff\xff\xff")
        await asyncio.Event().wait()

    server = grpc.aio.server()
    handlers = {"Run": grpc.stream_stream_rpc_method_handler(babble)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("pagemesh.v1.EngineService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert "DecodeError" in await _dial(channel).wait_closed()
    await server.stop(None)


async def test_peer_that_does_not_read_does_not_keep_the_server_s_end(start: Any) -> None:
    """A stopped client: its window fills, its heartbeats stop; the handler has to end all the same."""
    ended = asyncio.Event()

    async def flood(stream: Served) -> None:
        if ended.is_set():
            return await _echo(stream)
        large = engine_pb2.RunResponse(step=engine_pb2.Step(ids=[1000] * 100_000))
        for _ in range(100):
            stream.send(large)
        assert [request async for request in stream if not request.HasField("hello")] == []
        assert stream.reason is not None
        ended.set()

    engine = Engine(flood, StreamTiming(heartbeat_s=0.1, silence_s=0.8))
    _, channel = await start(engine=engine)
    call = engine_pb2_grpc.EngineServiceStub(channel).Run()
    await call.write(engine_pb2.RunRequest(hello=engine_pb2.RunHello(gateway_id="g")))
    async with asyncio.timeout(5):
        await ended.wait()
    again = _dial(channel)
    assert (await anext(again)).hello.boot_id == "b", "the connection is still good"
    async with asyncio.timeout(3):
        while await call.read() is not grpc.aio.EOF:
            pass
    again.close()
    await again.wait_closed()


async def test_thawed_end_surfaces_nothing_of_the_old_call(start: Any) -> None:
    """The server's end falls silent (as a stopped process does), then speaks again on the old call."""
    thaw = asyncio.Event()
    late: list[bool] = []

    class Frozen(engine_pb2_grpc.EngineServiceServicer):
        async def Run(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
            await context.write(_response(1))
            try:
                await thaw.wait()
            finally:
                late.append(context.cancelled() or context.done())

    _, channel = await start(engine=Frozen())
    stream = _dial(channel)
    assert (await anext(stream)).ended[0].handle == 1
    assert "silent" in await stream.wait_closed()
    thaw.set()
    assert [message async for message in stream] == []
    await _until(lambda: len(late) == 1)


async def test_no_task_is_left_behind(start: Any) -> None:
    before = asyncio.all_tasks()
    engine = Engine(_echo)
    _, channel = await start(engine=engine)
    for _ in range(10):
        async with _dial(channel) as stream:
            await anext(stream)
    await _until(lambda: all(not served.is_open for served in engine.streams))
    await _until(lambda: not [task for task in asyncio.all_tasks() - before if _is_streams(task)])


def _is_streams(task: "asyncio.Task[Any]") -> bool:
    return task.get_name().startswith("stream")


def _block(seconds: float) -> None:
    """Holds the event loop, as a long garbage collection or SIGSTOP does."""
    time.sleep(seconds)
