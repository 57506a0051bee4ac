"""Writes one request's events to its caller, one at a time, and notices a reader that takes nothing any more.

Delivered is what the stream's write accepted. It knows events' numbers and times, not where tokens come from.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from pagemesh.v1 import gateway_pb2, generation_pb2
from services.contract.errors import MeshError, Reason
from services.gateway.life.outbox import Outbox
from services.gateway.life.request_words import ChoiceLogprobs, Complete, EmitTokens, Fail
from services.gateway.live_request import LiveRequest

UNSTICK_S = 0.2
"""A request that has failed waits so long for a write that is under way."""

WriteFn = Callable[[gateway_pb2.GenerateResponse], Awaitable[None]]


class Delivery:
    """The writer's side of one request."""

    def __init__(
        self,
        write: WriteFn,
        outbox: Outbox,
        num_choices: int,
        stall_timeout_s: float,
        on_tokens: Callable[[EmitTokens, float, float | None], None],
    ) -> None:
        """on_tokens hears each token event written: the event, when, and when its choice's last one was."""
        self.num_delivered = [0] * num_choices
        self._write_message = write
        self._outbox = outbox
        self._stall_timeout_s = stall_timeout_s
        self._on_tokens = on_tokens
        self._loop = asyncio.get_running_loop()
        self._last_token_s: list[float | None] = [None] * num_choices
        self._task: asyncio.Task[object] | None = None
        self._write_since_s: float | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.stuck_error: MeshError | None = None

    def watch(self, live: LiveRequest) -> None:
        """From now on a write that hangs is cancelled with its task; `stuck_error` then says why."""
        self._task = asyncio.current_task()
        live.on_end = self._on_end
        self._watch_stall(live)

    def close(self) -> None:
        """The reverse of watch."""
        self._task = None
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    async def send(self, response: gateway_pb2.GenerateResponse) -> None:
        """Numbers, dates and writes one event."""
        response.seq_id = self._outbox.number()
        timestamp = response.timestamp
        timestamp.seconds, timestamp.nanos = divmod(time.time_ns(), 10**9)
        self._write_since_s = self._loop.time()
        try:
            await self._write_message(response)
        finally:
            self._write_since_s = None

    async def run(
        self, live: LiveRequest, make_started: Callable[[], gateway_pb2.GenerateResponse]
    ) -> Complete | Fail:
        """Writes `started` once an engine is known, then token events; returns the end when nothing waits.

        A request that failed before its `started` has no events at all.
        """
        while not live.has_engine and live.end is None:
            await live.wait_news()
        if isinstance(live.end, Fail):
            return live.end
        await self.send(make_started())
        while True:
            while (tokens := self._outbox.take()) is not None:
                await self.send(_token(tokens))
                self._delivered(tokens)
            if live.end is not None:
                return live.end
            await live.wait_news()

    def _delivered(self, tokens: EmitTokens) -> None:
        now, choice = self._loop.time(), tokens.choice
        self.num_delivered[choice] += len(tokens.ids)
        self._on_tokens(tokens, now, self._last_token_s[choice])
        self._last_token_s[choice] = now

    def _watch_stall(self, live: LiveRequest) -> None:
        """One lazy timer: it is set anew when it fires, not with every write."""
        now = self._loop.time()
        since_s = self._write_since_s if self._write_since_s is not None else now
        if now - since_s >= self._stall_timeout_s:
            message = f"the reader took nothing for {self._stall_timeout_s:g} s"
            error = MeshError(Reason.SLOW_READER, message)
            live.fail(error)
            self._unstick(since_s, error)
            return
        self._stall_timer = self._loop.call_at(since_s + self._stall_timeout_s, self._watch_stall, live)

    def _on_end(self, end: Complete | Fail) -> None:
        if isinstance(end, Fail) and self._write_since_s is not None:
            self._loop.call_later(UNSTICK_S, self._unstick, self._write_since_s, end.error)

    def _unstick(self, since_s: float, error: MeshError) -> None:
        if self._write_since_s == since_s and self._task is not None and self.stuck_error is None:
            self.stuck_error = error
            self._task.cancel()


def _token(tokens: EmitTokens) -> gateway_pb2.GenerateResponse:
    """Filled in place: copying a token into its response costs more than all else here."""
    response = gateway_pb2.GenerateResponse()
    token = response.token
    token.choice = tokens.choice
    token.first_output_index = tokens.first_index
    token.ids.extend(tokens.ids)
    token.text = tokens.text
    if tokens.logprobs is not None:
        token.logprobs.extend(map(_output_logprobs, tokens.logprobs))
    return response


def _output_logprobs(column: ChoiceLogprobs) -> generation_pb2.OutputLogprobs:
    """The chosen id stands first, then the likeliest."""
    entries: Sequence[generation_pb2.TokenLogprob] = [
        generation_pb2.TokenLogprob(token_id=token_id, logprob=value)
        for token_id, value in zip(column.ids, column.values, strict=True)
    ]
    return generation_pb2.OutputLogprobs(chosen=entries[0] if entries else None, top=entries[1:])
