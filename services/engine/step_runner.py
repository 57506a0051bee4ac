"""The one compute thread: every call of the executor happens there, in the order of the plans.

After a step that raised, the steps that were already queued behind it do not run.
"""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.engine.core.running_set import Plan
from services.engine.step import Executor, ExecutorSpec, Row, SamplingSpec, SequenceSpec, StepResult

PROBE_SEQUENCE_ID = 0
"""Sequences of the running set count from 1."""

COMPUTE_THREAD = "compute"
"""What the system calls it, so that its CPU time can be told from the rest of the process."""

logger = logging.getLogger(__name__)


class StepFailedError(Exception):
    """The executor raised in this step."""


class StepAbandonedError(Exception):
    """This step followed one that raised and never ran."""


class DeadExecutorError(Exception):
    """The executor cannot run anything any more."""


class StepRunner:
    """Owns the executor and its thread."""

    def __init__(self, executor: Executor, is_poisoning: bool = False) -> None:
        self._executor = executor
        self._is_poisoning = is_poisoning
        self._thread = ThreadPoolExecutor(1, COMPUTE_THREAD, initializer=_name_thread)
        self._known: set[int] = set()
        self._has_failed = False
        self._probe_block = 0

    async def load(self) -> ExecutorSpec:
        """Loads the weights; may raise ModelFolderError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._executor.load)

    async def allocate(self, num_blocks: int) -> None:
        """Allocates the pool and one block more, in which probes run."""
        self._probe_block = num_blocks
        await asyncio.get_running_loop().run_in_executor(
            self._thread, self._executor.allocate, num_blocks + 1
        )

    async def warm_up(self) -> None:
        """Draws one id, so that the first request is not slower than others. Raises DeadExecutorError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._probe, True)

    async def probe(self) -> None:
        """Runs one position after a failure. Raises DeadExecutorError if even that is not possible."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._probe, False)

    def submit(self, plan: Plan) -> asyncio.Future[StepResult]:
        """Queues a step. The future raises StepFailedError or StepAbandonedError."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, plan)

    def mend(self) -> None:
        """Steps run again; call it when none is queued."""
        self._has_failed = False

    async def close(self) -> None:
        """Waits for the step in flight and gives the memory back."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._executor.unload)
        self._thread.shutdown()

    def _run(self, plan: Plan) -> StepResult:
        self._forget(plan)
        if self._is_poisoning and plan.freed_block_ids:
            self._executor.poison(plan.freed_block_ids)
        if self._has_failed:
            # The running set introduces nobody twice.
            self._introduce(plan)
            raise StepAbandonedError
        if not plan.rows:
            return StepResult((), 0, 0)
        try:
            self._introduce(plan)
            return self._executor.run([planned.row for planned in plan.rows])
        except Exception as error:
            self._has_failed = True
            logger.exception("step raised", extra={"step": plan.number, "rows": len(plan.rows)})
            raise StepFailedError(type(error).__name__) from error

    def _introduce(self, plan: Plan) -> None:
        for spec in plan.added:
            self._executor.add(spec)
            self._known.add(spec.sequence_id)

    def _forget(self, plan: Plan) -> None:
        for sequence_id in plan.removed_ids:
            # One whose introduction failed was never known.
            if sequence_id in self._known:
                self._known.discard(sequence_id)
                self._executor.remove(sequence_id)

    def _probe(self, is_sampled: bool) -> None:
        spec = SequenceSpec(PROBE_SEQUENCE_ID, (0,), 1, SamplingSpec(temperature=0.0))
        row = Row(PROBE_SEQUENCE_ID, (0,), 0, (self._probe_block,), is_sampled)
        try:
            self._executor.add(spec)
            result = self._executor.run([row])
            self._executor.remove(PROBE_SEQUENCE_ID)
        except Exception as error:
            logger.exception("probe raised")
            raise DeadExecutorError(f"the executor runs nothing: {type(error).__name__}") from error
        if not result.outputs[0].is_usable:
            raise DeadExecutorError("the model's logits are not finite")


def _name_thread() -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(COMPUTE_THREAD)
