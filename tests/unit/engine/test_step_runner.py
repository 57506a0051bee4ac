"""The compute thread: what a raise does to the steps behind it, and an executor beyond help."""

import asyncio
from collections.abc import Sequence

import pytest

from services.engine.core.admission import Admission, Attempt, Identity
from services.engine.core.limits import Limits
from services.engine.core.running_set import RunningSet
from services.engine.step import Row, RowOutput, SamplingSpec, SequenceSpec, StepResult
from services.engine.step_runner import DeadExecutorError, StepAbandonedError, StepFailedError, StepRunner


class BrittleExecutor:
    """Raises on demand; notes what it was told."""

    def __init__(self) -> None:
        self.must_raise = False
        self.is_finite = True
        self.known: set[int] = set()

    def add(self, sequence: SequenceSpec) -> None:
        self.known.add(sequence.sequence_id)

    def remove(self, sequence_id: int) -> None:
        self.known.remove(sequence_id)

    def run(self, rows: Sequence[Row]) -> StepResult:
        if self.must_raise:
            raise RuntimeError("device")
        return StepResult(
            tuple(RowOutput(row.sequence_id, (1,), None, self.is_finite) for row in rows), 10, 10
        )

    def allocate(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def unload(self) -> None:
        self.known.clear()


def set_with(*prompts: tuple[int, ...]) -> RunningSet:
    running_set = RunningSet(Limits(num_blocks=50), "r", "boot")
    for handle, ids in enumerate(prompts):
        identity = Identity(b"t" * 16, f"r{handle}", 0)
        running_set.admit(
            Admission(1, handle, identity, Attempt(1, 1), ids, len(ids), 9, SamplingSpec()), now_us=0
        )
    return running_set


async def test_steps_behind_one_that_raised_do_not_run_until_mended() -> None:
    executor = BrittleExecutor()
    runner = StepRunner(executor)  # type: ignore[arg-type]
    await runner.allocate(50)
    running_set = set_with((1, 2), (3, 4))
    executor.must_raise = True
    first, second = running_set.plan(0), running_set.plan(1)
    assert first is not None and second is not None
    failed, abandoned = runner.submit(first), runner.submit(second)
    with pytest.raises(StepFailedError):
        await failed
    with pytest.raises(StepAbandonedError):
        await abandoned
    running_set.fail(first, 2)
    running_set.abandon(second, 2)
    executor.must_raise = False
    runner.mend()
    await runner.probe()
    after = running_set.plan(3)
    assert after is not None and after.rows == ()
    assert (await runner.submit(after)).outputs == ()
    assert executor.known == set()
    await runner.close()


async def test_an_executor_that_raises_on_anything_is_dead() -> None:
    executor = BrittleExecutor()
    runner = StepRunner(executor)  # type: ignore[arg-type]
    await runner.allocate(50)
    assert executor.num_blocks == 51
    executor.is_finite = False
    with pytest.raises(DeadExecutorError, match="not finite"):
        await runner.warm_up()
    executor.must_raise = True
    with pytest.raises(DeadExecutorError, match="RuntimeError"):
        await runner.probe()
    await asyncio.wait_for(runner.close(), 1)
