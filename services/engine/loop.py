"""The engine's loop: plan, run, commit, tell. Events reach the running set at once, also while a step runs.

Everything here is on the event loop; the executor is on its own thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from services.engine.core.outcome import StreamNews
from services.engine.core.running_set import Plan, RunningSet
from services.engine.run_words import StepTimes
from services.engine.step import StepResult
from services.engine.step_clock import StepClock
from services.engine.step_runner import StepAbandonedError, StepFailedError, StepRunner

Tell = Callable[[dict[int, StreamNews], StepTimes], None]
NoteStep = Callable[[Plan, StepResult], None]
Clock = Callable[[], int]
"""Microseconds, monotonic."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was handed to the compute thread."""

    plan: Plan
    future: asyncio.Future[StepResult]


class EngineLoop:
    """Drives one running set; `lag` steps are planned ahead of the one that is committed."""

    def __init__(
        self,
        running_set: RunningSet,
        runner: StepRunner,
        *,
        lag: int,
        clock: Clock,
        tell: Tell,
        note_step: NoteStep,
    ) -> None:
        self.running_set = running_set
        self.step_clock = StepClock()
        self._runner = runner
        self._lag = lag
        self._clock = clock
        self._tell = tell
        self._note_step = note_step
        self._flights: deque[Flight] = deque()
        self._times = StepTimes(0, 0, 0)
        self._has_events = asyncio.Event()
        self._is_idle = asyncio.Event()

    @property
    def now_us(self) -> int:
        return self._clock()

    def wake(self) -> None:
        """Something happened to the running set: tell its news, and plan anew."""
        self.publish()
        self._is_idle.clear()
        self._has_events.set()

    def publish(self) -> None:
        """Carries out what is new, outside a step as well."""
        self._tell(self.running_set.news.take_streams(), self._times)

    async def wait_idle(self) -> None:
        """Waits until no sequence is left."""
        while len(self.running_set.roster):
            await self._is_idle.wait()

    async def run(self) -> None:
        """Until cancelled. Raises DeadExecutorError if the executor cannot go on."""
        while True:
            plan = self.running_set.plan(self.now_us)
            if plan is not None:
                self._fly(plan)
            if self._flights and (plan is None or len(self._flights) > self._lag):
                await self._land()
            self.publish()
            if plan is None and not self._flights:
                await self._wait_for_events()
            else:
                # Streams are read and written between steps, however fast these are.
                await asyncio.sleep(0)

    def _fly(self, plan: Plan) -> None:
        self.step_clock.start(plan.num_tokens, self.now_us)
        self._flights.append(Flight(plan, self._runner.submit(plan)))

    async def _land(self) -> None:
        """Commits the oldest step."""
        flight = self._flights[0]
        try:
            result = await flight.future
        except StepFailedError as error:
            return await self._clear_away(error)
        self._flights.popleft()
        self.step_clock.end(result.step_us, self.now_us)
        self._times = StepTimes(flight.plan.number, result.step_us, result.device_us)
        self.running_set.commit(flight.plan, result, self.now_us)
        if flight.plan.rows:
            self._note_step(flight.plan, result)

    async def _clear_away(self, error: StepFailedError) -> None:
        """All rows of a step that raised are suspect; those queued behind it never ran."""
        failed = self._flights.popleft()
        self.step_clock.end(0, self.now_us)
        self.running_set.fail(failed.plan, self.now_us)
        logger.error("batch returned as suspect", extra={"rows": len(failed.plan.rows), "cause": error})
        while self._flights:
            flight = self._flights.popleft()
            try:
                await flight.future
            except StepAbandonedError:
                self.running_set.abandon(flight.plan, self.now_us)
            self.step_clock.end(0, self.now_us)
        self.publish()
        self._runner.mend()
        await self._runner.probe()

    async def _wait_for_events(self) -> None:
        if not len(self.running_set.roster):
            self._is_idle.set()
        wakeup_us = self.running_set.next_wakeup_us(self.now_us)
        try:
            async with asyncio.timeout(None if wakeup_us is None else max(0, wakeup_us - self.now_us) / 1e6):
                await self._has_events.wait()
        except TimeoutError:
            pass
        self._has_events.clear()
