"""A step that does not come back takes the engine out of service until it does; the clock is the test's."""

import asyncio

from services.chassis.readiness import Readiness
from services.engine.core.admission import Admission, Attempt, Identity
from services.engine.core.limits import Limits
from services.engine.core.running_set import Plan, RunningSet
from services.engine.loop import EngineLoop
from services.engine.step import RowOutput, SamplingSpec, StepResult
from services.engine.wiring import note_overdue

HANDLE = 1


class HeldRunner:
    """A compute thread whose steps end when the test says so."""

    def __init__(self) -> None:
        self.held: list[tuple[Plan, asyncio.Future[StepResult]]] = []

    def submit(self, plan: Plan) -> asyncio.Future[StepResult]:
        future: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self.held.append((plan, future))
        return future

    def end(self, step_us: int) -> None:
        plan, future = self.held.pop(0)
        rows = [planned.row for planned in plan.rows]
        outputs = tuple(
            RowOutput(row.sequence_id, (1,) if row.is_sampled else (), None, is_usable=True) for row in rows
        )
        future.set_result(StepResult(outputs, step_us, step_us))


async def settle() -> None:
    """Lets the loop run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_overdue_step_flips_readiness_and_its_end_flips_it_back() -> None:
    now_us = 0
    running_set = RunningSet(Limits(num_blocks=50), "r", "boot")
    identity = Identity(b"t" * 16, "r", 0)
    admission = Admission(1, HANDLE, identity, Attempt(1, 1), (1, 2, 3), 3, 9, SamplingSpec())
    running_set.admit(admission, now_us=0)
    runner, readiness = HeldRunner(), Readiness()
    loop = EngineLoop(
        running_set,
        runner,  # type: ignore[arg-type]
        lag=0,
        clock=lambda: now_us,
        tell=lambda news, times: None,
        note_step=lambda plan, result: None,
    )
    task = asyncio.create_task(loop.run())
    await settle()
    assert len(runner.held) == 1

    def is_ready_at(time_us: int) -> bool:
        nonlocal now_us
        now_us = time_us
        note_overdue(loop, readiness)
        return readiness.is_ready

    assert is_ready_at(10_000_000)
    assert not is_ready_at(10_000_001) and readiness.unmet == ("step in time",)
    # The step comes back after all, and steps of that length are what is expected from now on.
    now_us = 12_000_000
    runner.end(step_us=12_000_000)
    await settle()
    assert len(runner.held) == 1
    assert is_ready_at(12_000_000)
    assert is_ready_at(72_000_000)
    assert not is_ready_at(72_000_001)
    task.cancel()
