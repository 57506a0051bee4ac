"""Sends conversations in a closed or an open loop and keeps what arrives, by the event loop's clock."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bench.load.arrivals import intended_times
from bench.load.drivers.driver import Arrival, Driver, RequestError, Turn
from bench.load.meter import Mark, Meter
from bench.load.prompts import Conversation, conversations
from bench.load.record import RequestRecord, failed_record, record_of
from bench.load.spec import ClosedLoop, LoadSpec, OpenLoop, Replay

MAX_UNREAD = 200_000
"""Arrivals that are kept as they came; beyond, answers are read while the run goes on."""
ERROR_PAUSE_S = 0.1
"""Of a closed loop's stream, so that a server which refuses is not drowned."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of several processes that divide a run."""

    index: int = 0
    count: int = 1

    def of(self, number: int) -> int:
        return number // self.count + (self.index < number % self.count)


@dataclass(slots=True)
class _Exchange:
    """A request that has ended, not yet read."""

    intended_s: float
    is_measured: bool
    turn: int
    sent_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""
    arrivals: list[Arrival] = field(default_factory=list)


class Loops:
    """One process's part of one run. Raises SpecError if a recorded file cannot be read."""

    def __init__(self, spec: LoadSpec, driver: Driver, share: Share) -> None:
        requests = spec.num_requests
        self._spec = spec
        self._driver = driver
        self._share = share
        self.meter = Meter(
            share.of(spec.num_warmup), None if requests is None else share.of(requests), spec.duration_s
        )
        self._source = itertools.islice(conversations(spec), share.index, None, share.count)
        self._unread: list[_Exchange] = []
        self._num_unread = 0
        self._records: list[RequestRecord] = []
        self.num_ended = 0

    async def run(self) -> None:
        """Returns when the last request has ended."""
        match self._spec.load:
            case ClosedLoop(num_streams):
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._share.of(num_streams)):
                        group.create_task(self._stream())
            case OpenLoop() as load:
                times = itertools.islice(
                    intended_times(load, self._spec.seed), self._share.index, None, self._share.count
                )
                await self._replay(zip(times, self._source, strict=False))
            case Replay():
                await self._replay((item.at_s, item) for item in self._source)

    def records(self) -> list[RequestRecord]:
        """Reads what is left unread."""
        while self._unread:
            self._read(self._unread.pop())
        return self._records

    async def _stream(self) -> None:
        loop = asyncio.get_running_loop()
        while (is_measured := self.meter.admit(_mark(loop.time()))) is not None:
            conversation = next(self._source, None)
            if conversation is None:
                self.meter.close(_mark(loop.time()), loop.time())
                return
            if not await self._converse(conversation, is_measured, loop.time()):
                await asyncio.sleep(ERROR_PAUSE_S)

    async def _replay(self, due: Iterator[tuple[float, Conversation]]) -> None:
        loop = asyncio.get_running_loop()
        begin_s = intended_s = loop.time()
        async with asyncio.TaskGroup() as group:
            for at_s, conversation in due:
                intended_s = begin_s + at_s
                await asyncio.sleep(intended_s - loop.time())
                is_measured = self.meter.admit(_mark(intended_s))
                if is_measured is None:
                    return
                group.create_task(self._converse(conversation, is_measured, intended_s))
            self.meter.close(_mark(intended_s), intended_s)

    async def _converse(self, conversation: Conversation, is_measured: bool, intended_s: float) -> bool:
        """All turns, one after the other, up to the first that fails. True if none did."""
        loop = asyncio.get_running_loop()
        history: tuple[str, ...] = ()
        for number, text in enumerate(conversation.turns):
            is_last = number == len(conversation.turns) - 1
            turn = Turn(conversation.index, text, conversation.max_tokens, history, is_last)
            exchange = _Exchange(intended_s, is_measured, number)
            await self._exchange(exchange, turn, loop.time)
            if not exchange.error and not is_last:
                history = (*history, text, self._answer_text(exchange))
            self._keep(exchange)
            if exchange.error:
                return False
            intended_s = loop.time()
        return True

    async def _exchange(self, exchange: _Exchange, turn: Turn, now_s: Callable[[], float]) -> None:
        exchange.sent_s = now_s()
        try:
            await self._driver.send(turn, exchange.arrivals)
        except RequestError as error:
            exchange.error = str(error)
        exchange.ended_s = now_s()
        self.num_ended += 1

    def _answer_text(self, exchange: _Exchange) -> str:
        with suppress(RequestError):  # a broken answer is counted when it is read again
            return self._driver.read(exchange.arrivals).text
        return ""

    def _keep(self, exchange: _Exchange) -> None:
        self._unread.append(exchange)
        self._num_unread += len(exchange.arrivals)
        while self._num_unread > MAX_UNREAD:
            self._read(self._unread.pop(0))

    def _read(self, exchange: _Exchange) -> None:
        self._num_unread -= len(exchange.arrivals)
        times = (exchange.intended_s, exchange.sent_s, exchange.ended_s)
        try:
            if exchange.error:
                raise RequestError(exchange.error)
            answer = self._driver.read(exchange.arrivals)
        except RequestError as error:
            record = failed_record(str(error), times, exchange.is_measured, exchange.turn)
        else:
            record = record_of(answer, times, exchange.is_measured, exchange.turn)
        self._records.append(record)


def _mark(at_s: float) -> Mark:
    return Mark(at_s, time.process_time())
