"""A driver of the load tool that is its own server: it answers after set delays."""

import asyncio
from collections.abc import Sequence

from bench.load.drivers.driver import Answer, Arrival, RequestError, Turn


class TimedDriver:
    """First token after `first_s`, then one every `gap_s`; nobody is answered between `stall_s[0]` and
    `stall_s[1]`, seconds after the first request."""

    def __init__(
        self,
        first_s: float = 0.1,
        gap_s: float = 0.01,
        *,
        stall_s: tuple[float, float] = (0.0, 0.0),
        fail_every: int = 0,
        tokens_per_event: int = 1,
    ) -> None:
        self._first_s, self._gap_s, self._stall_s = first_s, gap_s, stall_s
        self._fail_every = fail_every
        self._tokens_per_event = tokens_per_event
        self._begin_s: float | None = None
        self.turns: list[Turn] = []
        self.num_running = 0
        self.most_running = 0
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def send(self, turn: Turn, arrivals: list[Arrival]) -> None:
        loop = asyncio.get_running_loop()
        self._begin_s = loop.time() if self._begin_s is None else self._begin_s
        self.turns.append(turn)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            if self._fail_every and len(self.turns) % self._fail_every == 0:
                raise RequestError("told to fail")
            await self._answer(turn, arrivals)
        finally:
            self.num_running -= 1

    async def _answer(self, turn: Turn, arrivals: list[Arrival]) -> None:
        loop = asyncio.get_running_loop()
        await self._wait(self._first_s)
        for index in range(turn.max_tokens // self._tokens_per_event):
            if index:
                await self._wait(self._gap_s)
            arrivals.append((loop.time(), self._tokens_per_event))

    async def _wait(self, delay_s: float) -> None:
        """The delay, and what is left of the stall."""
        await asyncio.sleep(delay_s)
        since_s = asyncio.get_running_loop().time() - (self._begin_s or 0)
        begin_s, end_s = self._stall_s
        if begin_s <= since_s < end_s:
            await asyncio.sleep(end_s - since_s)

    def read(self, arrivals: Sequence[Arrival]) -> Answer:
        counts = [int(payload) for _, payload in arrivals]  # type: ignore[call-overload]
        times = [at_s for at_s, _ in arrivals]
        return Answer(times, [1] * len(counts), "so.", num_prompt_tokens=5, num_output_tokens=sum(counts))
