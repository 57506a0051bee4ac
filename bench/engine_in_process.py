"""The engine's loop and compute thread in this process, without gRPC: what a mesh is compared with."""

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.engine.core.admission import Admission, Attempt, Identity
from services.engine.core.limits import Limits
from services.engine.core.outcome import StreamNews
from services.engine.core.running_set import RunningSet
from services.engine.executors.scripted import ScriptedExecutor
from services.engine.loop import EngineLoop
from services.engine.run_words import StepTimes
from services.engine.step import SamplingSpec
from services.engine.step_runner import StepRunner


class EngineInProcess:
    """Runs sequences of ids; `loop` is the engine's own."""

    def __init__(self, runner: StepRunner, limits: Limits) -> None:
        self._set = RunningSet(limits, "revision", "boot")
        self.loop = EngineLoop(
            self._set, runner, lag=0, clock=_now_us, tell=self._tell, note_step=lambda plan, result: None
        )
        self._handles = itertools.count(1)
        self._first_s: dict[int, float] = {}
        self._ended: dict[int, asyncio.Future[None]] = {}

    async def run(self, prompt_ids: tuple[int, ...], num_tokens: int) -> float:
        """One sequence to its end; seconds to its first token."""
        handle = next(self._handles)
        self._ended[handle] = asyncio.get_running_loop().create_future()
        begin_s = time.perf_counter()
        self._set.admit(_admission(handle, prompt_ids, num_tokens), _now_us())
        self.loop.wake()
        await self._ended[handle]
        return self._first_s.pop(handle) - begin_s

    def _tell(self, news: dict[int, StreamNews], times: StepTimes) -> None:
        for stream in news.values():
            for row in stream.new_ids:
                if row.first_output_index == 0:
                    self._first_s[row.handle] = time.perf_counter()
            for ended in stream.ended:
                self._ended.pop(ended.handle).set_result(None)


@asynccontextmanager
async def engine_in_process(script: object, num_streams: int) -> AsyncIterator[EngineInProcess]:
    """A scripted engine that runs meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.json"
        path.write_text(json.dumps(script))
        runner = StepRunner(ScriptedExecutor(path))
        spec = await runner.load()
        limits = Limits(
            num_blocks=8192,
            max_sequences=num_streams,
            max_model_len=spec.max_model_len,
            vocab_size=spec.vocab_size,
        )
        await runner.allocate(limits.num_blocks)
        engine = EngineInProcess(runner, limits)
        task = asyncio.create_task(engine.loop.run())
        try:
            yield engine
        finally:
            task.cancel()
            await runner.close()


def _admission(handle: int, ids: tuple[int, ...], num_tokens: int) -> Admission:
    return Admission(
        stream_id=1,
        handle=handle,
        identity=Identity(bytes(16), f"r{handle}", 0),
        attempt=Attempt(1, 1),
        ids=ids,
        num_prompt_tokens=len(ids),
        max_output_tokens=num_tokens,
        sampling=SamplingSpec(temperature=0.0),
    )


def _now_us() -> int:
    return time.monotonic_ns() // 1000
