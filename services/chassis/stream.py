"""One end of a multiplexed bidirectional stream: one writer, a reader that waits for no consumer, heartbeats.

It knows nothing of what the messages say but that an empty one is a heartbeat.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

Out = TypeVar("Out", bound=Message)
In = TypeVar("In", bound=Message)
Out_contra = TypeVar("Out_contra", bound=Message, contravariant=True)
In_co = TypeVar("In_co", bound=Message, covariant=True)

ENDED = "ended by the peer"
CLOSED = "closed here"
LAST_WRITE_S = 1.0
"""So long an end waits for the write that gRPC holds: a server's call takes no status before it is over."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Both ends agree on these; tests shorten them."""

    heartbeat_s: float = 0.5
    silence_s: float = 2.0
    """So long without any message breaks the stream."""


DEFAULT_TIMING = StreamTiming()


class StreamBroken(Exception):
    """The stream is down; its message says why."""


class Transport(Protocol[Out_contra, In_co]):
    """What a stream runs on: a client's call or a server's context."""

    async def read(self) -> In_co | None:
        """The next message, None at the end. Raises if the call failed."""

    async def write(self, message: Out_contra, /) -> None:
        """Hands a message to the call, waiting while its window is full. Raises if the call is over."""

    def cancel(self) -> None:
        """Ends the call now."""


class MessageStream(Generic[Out, In]):
    """Messages both ways until one end closes, breaks or falls silent; for one loop and one consumer."""

    def __init__(
        self, transport: Transport[Out, In], heartbeat: Out, timing: StreamTiming = DEFAULT_TIMING
    ) -> None:
        """Starts at once; needs a running loop. `heartbeat` is an empty message."""
        assert heartbeat.ByteSize() == 0, "a heartbeat is empty"
        self._transport = transport
        self._heartbeat = heartbeat
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[In] = deque()
        self._outbox: deque[Out] = deque()
        self._consumer: asyncio.Future[None] | None = None
        self._has_output = asyncio.Event()
        self._is_flushed = asyncio.Event()
        self._is_flushed.set()
        self._reason: str | None = None
        self._has_been_unheard = False
        self._closed = asyncio.Event()
        self._is_late = False
        self._last_heard_s = self._loop.time()
        self._tick_due_s = self._last_heard_s + timing.heartbeat_s
        self._timer = self._loop.call_at(self._tick_due_s, self._tick)
        self._is_writing = False
        self._reader = self._loop.create_task(self._read_all(), name="stream reader")
        self._writer = self._loop.create_task(self._write_all(), name="stream writer")
        for task in (self._reader, self._writer):
            task.add_done_callback(self._on_task_done)

    @classmethod
    def over_call(
        cls,
        call: "grpc.aio.StreamStreamCall[Out, In]",
        *,
        heartbeat: Out,
        hello: Out | None = None,
        timing: StreamTiming = DEFAULT_TIMING,
    ) -> Self:
        """The client's end; hello is sent first."""
        stream = cls(_CallTransport(call), heartbeat, timing)
        if hello is not None:
            stream.send(hello)
        return stream

    @classmethod
    def over_context(
        cls,
        requests: AsyncIterator[In],
        context: "grpc.aio.ServicerContext[In, Out]",
        *,
        heartbeat: Out,
        hello: Out | None = None,
        timing: StreamTiming = DEFAULT_TIMING,
    ) -> Self:
        """The server's end, inside a coroutine handler (one without yield), whose return ends the call:

        async with MessageStream.over_context(requests, context, heartbeat=RunResponse()) as stream:
            async for request in stream: ...
        """
        stream = cls(_ContextTransport(requests, context), heartbeat, timing)
        if hello is not None:
            stream.send(hello)
        return stream

    @property
    def is_open(self) -> bool:
        """False once this end has closed, or the peer has, or it broke."""
        return self._reason is None

    @property
    def reason(self) -> str | None:
        """Why it is down; None while it is open."""
        return self._reason

    @property
    def was_let_go(self) -> bool:
        """It is down because one end did not hear the other in time: no sign that anybody died or erred."""
        return self._has_been_unheard or self._reason == ENDED

    @property
    def inbox_depth(self) -> int:
        """Messages received and not yet taken."""
        return len(self._inbox)

    @property
    def outbox_depth(self) -> int:
        """Messages sent and not yet handed to the call."""
        return len(self._outbox)

    def send(self, message: Out) -> None:
        """Queues a message; never waits. Raises StreamBroken if the stream is down."""
        if self._reason is not None:
            raise StreamBroken(self._reason)
        self._outbox.append(message)
        self._is_flushed.clear()
        self._has_output.set()

    async def flush(self) -> None:
        """Waits until everything sent was handed to the call, or the stream is down."""
        await self._is_flushed.wait()

    def close(self, reason: str = CLOSED) -> None:
        """Cancels the call first, then drops what was received and not taken, and what was not written."""
        if self._reason is None:
            self._transport.cancel()
            self._inbox.clear()
            self._end(reason)

    async def wait_closed(self) -> str:
        """Waits until the stream is down and its tasks have ended; says why."""
        await self._closed.wait()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)
        assert self._reason is not None
        return self._reason

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> In:
        """The next message with content. Ends when the stream is down; `reason` then says why."""
        while not self._inbox:
            if self._reason is not None:
                raise StopAsyncIteration
            self._consumer = self._loop.create_future()
            await self._consumer
        return self._inbox.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._timer.cancel()
        self._outbox.clear()
        self._reader.cancel()
        if self._is_writing:
            self._loop.call_later(LAST_WRITE_S, self._writer.cancel)
        else:
            self._writer.cancel()
        self._is_flushed.set()
        self._closed.set()
        self._wake_consumer()

    def _wake_consumer(self) -> None:
        if self._consumer is not None and not self._consumer.done():
            self._consumer.set_result(None)

    async def _read_all(self) -> None:
        reason = ENDED
        try:
            while (message := await self._transport.read()) is not None:
                self._last_heard_s = self._loop.time()
                if message.ByteSize():
                    self._inbox.append(message)
                    self._wake_consumer()
        except (grpc.aio.BaseError, grpc.RpcError, DecodeError, asyncio.InvalidStateError) as error:
            reason = _words(error)
        # What came before the peer's end is still good: the consumer takes it first.
        if self._reason is None:
            self._transport.cancel()
            self._end(reason)

    async def _write_all(self) -> None:
        try:
            while True:
                while self._outbox:
                    self._is_writing = True
                    await self._transport.write(self._outbox.popleft())
                    self._is_writing = False
                if self._reason is not None:
                    return
                self._is_flushed.set()
                self._has_output.clear()
                await self._has_output.wait()
        except (grpc.aio.BaseError, grpc.RpcError, asyncio.InvalidStateError) as error:
            # The reader learns the same with the call's status; should it not, silence ends the stream.
            logger.debug("stream write failed", extra={"cause": _words(error)})
            self._is_flushed.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # Not by us, or the stream would be down: someone closed the channel or cancelled the call.
            self.close("cancelled")
        elif (error := task.exception()) is not None:
            logger.error("stream task failed", exc_info=error)
            self.close(_words(error))

    def _tick(self) -> None:
        now_s = self._loop.time()
        late_s = now_s - self._tick_due_s
        silent_s = now_s - self._last_heard_s
        if late_s >= self._timing.silence_s:
            # We stood still for so long that the peer has broken the stream already.
            self._has_been_unheard = True
            self.close(f"this process stood still for {late_s:.1f} s")
        elif silent_s >= self._timing.silence_s and not self._may_be_our_fault(late_s):
            self._has_been_unheard = True
            self.close(f"silent for {silent_s:.1f} s")
        else:
            if not self._outbox:
                self.send(self._heartbeat)
            self._schedule_tick(now_s)

    def _may_be_our_fault(self, late_s: float) -> bool:
        """A late tick is no witness: what the peer sent may lie unread. It is excused once in a row."""
        was_late, self._is_late = self._is_late, late_s > self._timing.heartbeat_s / 2
        return self._is_late and not was_late

    def _schedule_tick(self, now_s: float) -> None:
        break_s = self._last_heard_s + self._timing.silence_s
        soonest_s = now_s + self._timing.heartbeat_s / 10
        self._tick_due_s = min(now_s + self._timing.heartbeat_s, max(break_s, soonest_s))
        self._timer = self._loop.call_at(self._tick_due_s, self._tick)


class _CallTransport(Generic[Out, In]):
    """A client's call."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[Out, In]") -> None:
        self._call = call
        self.write = call.write

    async def read(self) -> In | None:
        message = await self._call.read()
        if message is grpc.aio.EOF:
            return None
        if message is None:
            raise DecodeError("a message could not be decoded")
        return cast(In, message)

    def cancel(self) -> None:
        self._call.cancel()


class _ContextTransport(Generic[Out, In]):
    """A server's context. It cannot cancel: the handler returns as soon as its iteration ends.

    A write that the peer does not read keeps the handler for LAST_WRITE_S; then only gRPC's call, until the
    peer reads, cancels or fails the keep-alive.
    """

    def __init__(self, requests: AsyncIterator[In], context: "grpc.aio.ServicerContext[In, Out]") -> None:
        self._requests = requests
        self.write = context.write

    async def read(self) -> In | None:
        return await anext(self._requests, None)

    def cancel(self) -> None:
        pass


def _words(error: Any) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
