"""Drives the engine's core with the scripted executor at lag 0 or 1, on a clock of its own."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.contract.priority import Priority
from services.engine.core.admission import Admission, Attempt, CachePolicy, Identity, Ticket
from services.engine.core.limits import Limits
from services.engine.core.outcome import Ended, Progress, Refused, Returned, StreamNews
from services.engine.core.prefix_cache import Retention
from services.engine.core.running_set import Plan, RunningSet
from services.engine.executors.scripted import ScriptedExecutor, ScriptedFaultError
from services.engine.step import Row, SamplingSpec, StepResult

BOOT = "boot"
VOCAB = 97


@dataclass
class Told:
    """All that was said of one handle."""

    ids: list[int] = field(default_factory=list)
    first_index: int | None = None
    progress: Progress | None = None
    ended: Ended | None = None
    returned: Returned | None = None
    refused: Refused | None = None

    @property
    def num_ends(self) -> int:
        return sum(end is not None for end in (self.ended, self.returned, self.refused))


def write_script(path: Path, *parts: dict[str, Any], **top: Any) -> Path:
    """A script file of a small vocabulary."""
    path.write_text(json.dumps({"vocab_size": VOCAB, "max_model_len": 4096, **top, "scripts": parts}))
    return path


class EngineDriver:
    """One engine without a process: `admit`, `step`, read `told`."""

    def __init__(
        self,
        script_path: Path,
        *,
        lag: int = 0,
        seed: int = 0,
        is_poisoned: bool = True,
        step_us: int = 1_000,
        **limits: Any,
    ) -> None:
        self.executor = ScriptedExecutor(script_path)
        spec = self.executor.load()
        self.limits = Limits(
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_model_len,
            max_ids_per_step=spec.max_ids_per_step,
            window=spec.window,
            **{"num_blocks": 65, **limits},
        )
        self.executor.allocate(self.limits.num_blocks)
        self.set = RunningSet(self.limits, revision="r", boot_id=BOOT, seed=seed)
        self.now_us = 1_000_000
        self.told: dict[int, Told] = {}
        self.rows: list[list[Row]] = []
        self.num_steps = 0
        self.is_checked = True
        self._lag = lag
        self._step_us = step_us
        self._is_poisoned = is_poisoned
        self._in_flight: deque[tuple[Plan, StepResult | None]] = deque()
        self._is_broken = False
        self._next_handle = 1

    def admit(
        self,
        ids: Sequence[int],
        max_output_tokens: int = 8,
        *,
        num_prompt_tokens: int | None = None,
        request_id: str | None = None,
        choice: int = 0,
        attempt: tuple[int, int] = (1, 1),
        priority: Priority = Priority.INTERACTIVE,
        stream_id: int = 1,
        salt: bytes = b"tenant",
        policy: CachePolicy = CachePolicy.USE,
        retention: Retention | None = None,
        ticket: Ticket | None = None,
        time_left_us: int = 0,
        age_us: int = 0,
        is_suspect: bool = False,
        **sampling: Any,
    ) -> int:
        """Returns the handle; ids of the seeded draw depend on the request only through seed and choice."""
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        spec = SamplingSpec(**{"temperature": 0.0, "choice": choice, **sampling})
        identity = Identity(b"t" * 16, request_id or f"r{handle}", choice)
        self.told[handle] = Told()
        self.set.admit(
            Admission(
                stream_id=stream_id,
                handle=handle,
                identity=identity,
                attempt=Attempt(*attempt),
                ids=tuple(ids),
                num_prompt_tokens=len(ids) if num_prompt_tokens is None else num_prompt_tokens,
                max_output_tokens=max_output_tokens,
                sampling=spec,
                priority=priority,
                age_us=age_us,
                time_left_us=time_left_us,
                cache_salt=salt,
                cache_policy=policy,
                retention=retention,
                ticket=ticket,
                is_suspect=is_suspect,
            ),
            self.now_us,
        )
        self.collect()
        return handle

    def cancel(self, handle: int, stream_id: int = 1) -> None:
        self.set.cancel(stream_id, handle, self.now_us)
        self.collect()

    def step(self) -> bool:
        """Plans, runs, commits as the engine's loop does; false if there was nothing to do."""
        plan = self.set.plan(self.now_us)
        if plan is not None:
            self._in_flight.append((plan, self._run(plan)))
        if self._in_flight and (plan is None or len(self._in_flight) > self._lag):
            self._finish_oldest()
        elif plan is None:
            self.collect()
            return False
        self.now_us += self._step_us
        self.collect()
        if self.is_checked:
            self.set.check()
        return True

    def drain(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(max_steps):
            if not self.step():
                wakeup_us = self.set.next_wakeup_us(self.now_us)
                if not len(self.set.roster) or wakeup_us is None:
                    return
                self.now_us = max(self.now_us + 1, wakeup_us)
        raise AssertionError(f"not idle after {max_steps} steps")

    def output(self, ids: Sequence[int], max_output_tokens: int = 8, **more: Any) -> list[int]:
        """Ids drawn for a prompt that is admitted and run to its end now."""
        handle = self.admit(ids, max_output_tokens, **more)
        self.drain()
        return self.told[handle].ids

    @property
    def num_rows(self) -> int:
        """Positions that went through the model."""
        return sum(len(row.chunk_ids) for rows in self.rows for row in rows)

    def collect(self) -> dict[int, StreamNews]:
        streams = self.set.news.take_streams()
        for news in streams.values():
            self._take(news)
        return streams

    def _run(self, plan: Plan) -> StepResult | None:
        for sequence_id in plan.removed_ids:
            self.executor.remove(sequence_id)
        if self._is_poisoned:
            self.executor.poison(plan.freed_block_ids)
        for spec in plan.added:
            self.executor.add(spec)
        if self._is_broken:
            return None
        rows = [planned.row for planned in plan.rows]
        try:
            result = self.executor.run(rows)
        except ScriptedFaultError:
            self._is_broken = True
            return None
        if rows:
            self.rows.append(rows)
            self.num_steps += 1
        return result

    def _finish_oldest(self) -> None:
        plan, result = self._in_flight.popleft()
        if result is not None:
            self.set.commit(plan, result, self.now_us)
            return
        self.set.fail(plan, self.now_us)
        while self._in_flight:
            self.set.abandon(self._in_flight.popleft()[0], self.now_us)
        self._is_broken = False

    def _take(self, news: StreamNews) -> None:
        for refused in news.refused:
            self.told[refused.handle].refused = refused
        for progress in news.progress:
            self.told[progress.handle].progress = progress
        for new in news.new_ids:
            told = self.told[new.handle]
            told.first_index = new.first_output_index if told.first_index is None else told.first_index
            assert new.first_output_index == told.first_index + len(told.ids), (new, told)
            assert told.num_ends == 0, told
            told.ids += new.ids
        for returned in news.returned:
            self.told[returned.handle].returned = returned
        for ended in news.ended:
            self.told[ended.handle].ended = ended
        assert all(told.num_ends <= 1 for told in self.told.values())
