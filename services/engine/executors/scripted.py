"""An executor without a model: replays a script, else draws from logits that are a function of the ids.

Its KV cache is real enough to fail: a slot holds a digest of everything up to its position, logits are made
from what is read back through the block table, and a wrong, stale or poisoned block spoils the draw.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from services.engine.executors.script import Part, Script, ScriptFile
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import (
    NULL_BLOCK,
    DrawnLogprobs,
    ExecutorSpec,
    Row,
    RowOutput,
    SamplingSpec,
    SequenceSpec,
    StepResult,
)

_MASK = 2**64 - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
_EMPTY = 0
"""Digest of a slot that was never written or was poisoned."""

Slots = npt.NDArray[np.uint64]


class ScriptedFaultError(RuntimeError):
    """The script says that this step raises."""


class ScriptedExecutor:
    """One id per row; `ids_per_step` of a script's part gives several, all but the last computed."""

    def __init__(self, script_path: Path | None = None, *, block_size: int = 16) -> None:
        self._file = ScriptFile(script_path)
        self._script = Script()
        self._block_size = block_size
        self._slots: Slots = np.zeros((0, block_size), np.uint64)
        self._states: dict[int, SequenceState] = {}
        self._parts: dict[int, Part] = {}
        self._prompt_lengths: dict[int, int] = {}
        self._sampler = Sampler(0)

    def load(self) -> ExecutorSpec:
        """Raises ScriptError."""
        self._script = self._file.read()
        self._sampler = Sampler(self._script.vocab_size)
        return ExecutorSpec(
            name="scripted",
            dtype="float32",
            kv_dtype="uint64",
            kernel_path="scripted",
            device="cpu",
            vocab_size=self._script.vocab_size,
            max_model_len=self._script.max_model_len,
            row_invariant=self._script.row_invariant,
            bytes_per_block=self._block_size * 8,
            max_ids_per_step=self._script.max_ids_per_step,
            window=self._script.window,
        )

    def allocate(self, num_blocks: int) -> None:
        self._slots = np.full((num_blocks, self._block_size), _EMPTY, np.uint64)

    def add(self, sequence: SequenceSpec) -> None:
        """Matches the sequence with the script as it stands now."""
        self._states[sequence.sequence_id] = SequenceState(sequence)
        self._prompt_lengths[sequence.sequence_id] = sequence.num_prompt_tokens
        prompt_ids = sequence.ids[: sequence.num_prompt_tokens]
        self._parts[sequence.sequence_id] = self._file.read().part_for(prompt_ids)

    def remove(self, sequence_id: int) -> None:
        del self._states[sequence_id], self._parts[sequence_id], self._prompt_lengths[sequence_id]

    def run(self, rows: Sequence[Row]) -> StepResult:
        """Raises ScriptedFaultError where the script says so; the pool is then as before the step."""
        started_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        for row in rows:
            self._raise_if_told(row)
        outputs = tuple(self._run_row(row) for row in rows)
        device_us = (time.thread_time_ns() - cpu_ns) // 1000
        pause_ms = max((self._parts[row.sequence_id].step_ms for row in rows), default=0.0)
        if pause_ms:
            time.sleep(pause_ms / 1000)
        return StepResult(outputs, (time.perf_counter_ns() - started_ns) // 1000, device_us)

    def poison(self, block_ids: Sequence[int]) -> None:
        self._slots[list(block_ids)] = _EMPTY

    def unload(self) -> None:
        self._slots = np.zeros((0, self._block_size), np.uint64)

    def _raise_if_told(self, row: Row) -> None:
        part = self._parts[row.sequence_id]
        if row.is_sampled and part.raise_at is not None and self._output_index(row) == part.raise_at:
            raise ScriptedFaultError(f"raise_at {part.raise_at}")

    def _output_index(self, row: Row) -> int:
        """Index of the id that a sampled row draws."""
        return row.start + len(row.chunk_ids) - self._prompt_lengths[row.sequence_id]

    def _run_row(self, row: Row) -> RowOutput:
        state, part = self._states[row.sequence_id], self._parts[row.sequence_id]
        end = row.start + len(row.chunk_ids)
        assert NULL_BLOCK not in row.block_ids[self._first_seen(row.start) // self._block_size :], row
        # The executor's own copy knows the id that stands for PLACEHOLDER by now, unless the draw failed.
        if end > len(state.ids):
            return RowOutput(row.sequence_id, (), None, is_usable=False)
        self._write(row.block_ids, row.start, state.ids[row.start : end])
        digest = self._read(row.block_ids, end)
        if not row.is_sampled:
            return RowOutput(row.sequence_id, (), None, is_usable=digest != _EMPTY)
        index = self._output_index(row)
        assert end == len(state.ids), (end, len(state.ids))
        if digest == _EMPTY or part.nan_at == index:
            return RowOutput(row.sequence_id, (), None, is_usable=False)
        # All but the last id are computed here, so the table bounds how many can be drawn.
        num_slots = len(row.block_ids) * self._block_size - end
        count = max(1, min(part.ids_per_step, self._script.max_ids_per_step, num_slots + 1))
        forced = part.output_ids[index : index + count]
        output = self._force(state, forced, digest) if forced else self._draw(state, digest)
        for drawn in output.ids:
            state.append(drawn)
        self._write(row.block_ids, end, output.ids[:-1])
        return output

    def _draw(self, state: SequenceState, digest: int) -> RowOutput:
        return self._sampler.draw(torch.from_numpy(self._logits(digest)[None]), [state])[0]

    def _force(self, state: SequenceState, ids: tuple[int, ...], digest: int) -> RowOutput:
        num_logprobs = state.sampling.logprobs
        if num_logprobs is None:
            return RowOutput(state.sequence_id, ids, None, is_usable=True)
        spec = SequenceSpec(state.sequence_id, (), 0, SamplingSpec(temperature=0.0, logprobs=num_logprobs))
        logprobs: list[DrawnLogprobs] = []
        for offset, token_id in enumerate(ids):
            logits = self._logits(digest + offset)
            logits[token_id] = logits.max() + 1
            drawn = self._sampler.draw(torch.from_numpy(logits[None]), [SequenceState(spec)])[0]
            logprobs += drawn.logprobs or ()
        return RowOutput(state.sequence_id, ids, tuple(logprobs), is_usable=True)

    def _logits(self, digest: int) -> npt.NDArray[np.float32]:
        source = np.random.Generator(np.random.Philox(key=digest & _MASK))
        return source.standard_normal(self._script.vocab_size, np.float32) * np.float32(3)

    def _write(self, block_ids: Sequence[int], start: int, ids: Sequence[int]) -> None:
        """Chains each position's digest to the one before it, which is read from the pool."""
        size = self._block_size
        digest = 1 if start == 0 else int(self._slots[block_ids[(start - 1) // size], (start - 1) % size])
        for position, token_id in enumerate(ids, start):
            if digest != _EMPTY:
                digest = ((digest ^ (token_id + 1)) * _MULTIPLIER + position) & _MASK or 1
            self._slots[block_ids[position // size], position % size] = digest

    def _first_seen(self, position: int) -> int:
        window = self._script.window
        return 0 if window is None else max(0, position - window + 1)

    def _read(self, block_ids: Sequence[int], end: int) -> int:
        """Digest of positions 0..end-1 over every block that the last sees; _EMPTY if any of them is."""
        size = self._block_size
        full = self._slots[list(block_ids[self._first_seen(end - 1) // size : end // size]), size - 1]
        last = self._slots[block_ids[(end - 1) // size], (end - 1) % size]
        if last == _EMPTY or not full.all():
            return _EMPTY
        weights = np.arange(1, 2 * len(full), 2, dtype=np.uint64)
        return (int((full * weights).sum(dtype=np.uint64)) ^ int(last)) & _MASK or 1
