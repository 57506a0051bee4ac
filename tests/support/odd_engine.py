"""The engine with a scripted executor that is slow or dies: python -m tests.support.odd_engine."""

import os
import sys
import time
from collections.abc import Sequence

from services.engine.__main__ import main
from services.engine.executors import registry
from services.engine.executors.registry import ExecutorRequest, MadeExecutor
from services.engine.executors.scripted import ScriptedExecutor, ScriptedFaultError
from services.engine.step import ExecutorSpec, Row, StepResult

SLOW_S = 0.7


class DyingExecutor(ScriptedExecutor):
    """After its first fault nothing runs any more, as after a sticky device error."""

    is_dead = False

    def run(self, rows: Sequence[Row]) -> StepResult:
        if self.is_dead:
            raise ScriptedFaultError("dead")
        try:
            return super().run(rows)
        except ScriptedFaultError:
            self.is_dead = True
            raise


class SlowExecutor(ScriptedExecutor):
    """Takes its time to load and for its first id, and says when that was drawn."""

    has_run = False

    def load(self) -> ExecutorSpec:
        time.sleep(SLOW_S)
        return super().load()

    def run(self, rows: Sequence[Row]) -> StepResult:
        if self.has_run:
            return super().run(rows)
        time.sleep(SLOW_S)
        result = super().run(rows)
        self.has_run = True
        print(f"DRAWN {len(result.outputs[0].ids)}", file=sys.stderr, flush=True)
        return result


class StillbornExecutor(SlowExecutor):
    """Loads, and cannot run."""

    def run(self, rows: Sequence[Row]) -> StepResult:
        time.sleep(SLOW_S)
        raise ScriptedFaultError("stillborn")


KINDS = {"dying": DyingExecutor, "slow": SlowExecutor, "stillborn": StillbornExecutor}


def _make(request: ExecutorRequest) -> MadeExecutor:
    kind = KINDS[os.environ["ODD_ENGINE"]]
    return MadeExecutor(kind(request.script, block_size=request.block_size), "odd", None)


if __name__ == "__main__":
    registry.FACTORIES = {"scripted": _make}
    main()
