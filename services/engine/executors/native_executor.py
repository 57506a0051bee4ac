"""Runs steps of a Llama-family model in native code: one call for all rows, then a draw per sampled row.

Keeps its own copy of every sequence's ids, so that a row may name the id in flight. Knows no requests.
"""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import torch

from services.contract.model_folder import ModelFolder
from services.engine.executors.native_weights import give_weights, make_packer
from services.engine.executors.row_ids import is_lost, known_ids
from services.engine.executors.row_outputs import remember, row_outputs
from services.engine.model.config import DecoderConfig, read_config
from services.engine.native.library import Batch, KernelPath, KvFormat, Library, NativeModel, Shape
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import ExecutorSpec, LogitsWatcher, Row, RowOutput, SequenceSpec, StepResult

MAX_HEAD_SIZE = 256
KV_FORMATS = {"plain": KvFormat.BF16, "int8": KvFormat.INT8}
WEIGHT_DTYPES = {"plain": "bfloat16", "int8": "int8", "int4": "int4"}
"""By the option `weights`; what activations and KV are is the kernels' matter."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """How to compute."""

    num_threads: int = 0
    """0: as many as cores are usable."""
    max_model_len: int = 0
    """Ids per sequence; 0 is the model's own limit."""
    weights: str = "plain"
    """plain (bf16), int8 or int4."""
    kv_dtype: str = "plain"
    """plain (bf16) or int8."""
    path: KernelPath = KernelPath.NONE
    """NONE: the fastest of this processor."""


class NativeExecutor:
    """Implements Executor."""

    def __init__(self, folder: ModelFolder, library: Path, options: NativeOptions) -> None:
        self._folder = folder
        self._library = Library(library)
        self._options = options
        self._path = options.path or self._library.best_path()
        self._num_threads = options.num_threads or usable_cores()
        self._states: dict[int, SequenceState] = {}
        self._sampler = Sampler(folder.vocab_size)
        self._watcher: LogitsWatcher | None = None
        self._model: NativeModel | None = None
        self._logits = torch.empty(0)

    def load(self) -> ExecutorSpec:
        config = read_config(self._folder)
        self._model = NativeModel(
            self._library, _shape(config), self._path, KV_FORMATS[self._options.kv_dtype], self._num_threads
        )
        packer = make_packer(self._options.weights, self._library, self._folder, config)
        give_weights(self._model, self._folder, config, packer)
        return self._describe(config, self._model)

    def allocate(self, num_blocks: int) -> None:
        self.model.allocate(num_blocks)

    def add(self, sequence: SequenceSpec) -> None:
        self._states[sequence.sequence_id] = SequenceState(sequence)

    def remove(self, sequence_id: int) -> None:
        del self._states[sequence_id]

    def poison(self, block_ids: Sequence[int]) -> None:
        self.model.poison(block_ids)

    def unload(self) -> None:
        if self._model is not None:
            self._model.close()
        self._model = None
        self._states.clear()

    def watch_logits(self, watcher: LogitsWatcher | None) -> None:
        self._watcher = watcher

    def run(self, rows: Sequence[Row]) -> StepResult:
        started = time.perf_counter_ns()
        lost = [is_lost(row, self._states[row.sequence_id]) for row in rows]
        logits, likeliest, is_finite = self._compute(rows)
        computed = time.perf_counter_ns()
        is_usable = [ok and not gone for ok, gone in zip(is_finite, lost, strict=True)]
        outputs = row_outputs(rows, self._draw(rows, logits, likeliest), is_usable)
        remember(outputs, self._states)
        ended = time.perf_counter_ns()
        return StepResult(
            outputs,
            step_us=(ended - started) // 1000,
            device_us=(computed - started) // 1000,
            activation_bytes=self.model.activation_bytes + self._logits.nbytes,
        )

    def _compute(self, rows: Sequence[Row]) -> tuple[torch.Tensor, list[int], list[bool]]:
        """Gives the sampled rows' logits (a view) and likeliest ids, and for all rows if they are finite."""
        model = self.model
        ids = np.fromiter(
            chain.from_iterable(known_ids(row, self._states[row.sequence_id]) for row in rows), np.int32
        )
        row_begin = np.fromiter(accumulate((len(row.chunk_ids) for row in rows), initial=0), np.int32)
        table = np.fromiter(chain.from_iterable(row.block_ids for row in rows), np.int32)
        table_begin = np.fromiter(accumulate((len(row.block_ids) for row in rows), initial=0), np.int32)
        starts = np.fromiter((row.start for row in rows), np.int32)
        is_sampled = np.fromiter((row.is_sampled for row in rows), np.uint8)
        is_finite = np.empty(len(rows), np.uint8)
        logits = self._logits_for(int(is_sampled.sum()), model.logits_stride)
        likeliest = np.empty(len(logits), np.int32)
        arrays = (ids, row_begin, starts, table, table_begin, is_sampled)
        addresses = (array.ctypes.data for array in arrays)
        results = (logits.data_ptr(), likeliest.ctypes.data, is_finite.ctypes.data)
        model.step(Batch(len(rows), *addresses, self._folder.vocab_size, *results))
        return logits, likeliest.tolist(), is_finite.astype(bool).tolist()

    def _logits_for(self, num_rows: int, stride: int) -> torch.Tensor:
        """A view of a buffer that lives on: fresh memory would cost page faults in every step."""
        if len(self._logits) < num_rows:
            self._logits = torch.empty(num_rows, stride)
        return self._logits[:num_rows]

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor, likeliest: list[int]) -> list[RowOutput]:
        states = [self._states[row.sequence_id] for row in rows if row.is_sampled]
        if self._watcher is not None and states:
            seen = logits[:, : self._folder.vocab_size].numpy()
            self._watcher([state.sequence_id for state in states], seen)
        return self._sampler.draw(logits, states, likeliest) if states else []

    @property
    def model(self) -> NativeModel:
        """What it computes with, once loaded."""
        assert self._model is not None, "load comes first"
        return self._model

    def _describe(self, config: DecoderConfig, model: NativeModel) -> ExecutorSpec:
        limit = self._options.max_model_len or config.max_positions
        return ExecutorSpec(
            name="native",
            dtype=WEIGHT_DTYPES[self._options.weights],
            kv_dtype=KV_FORMATS[self._options.kv_dtype].dtype,
            kernel_path=self._path.name.lower(),
            device=f"cpu/{platform.machine()}",
            vocab_size=self._folder.vocab_size,
            max_model_len=min(limit, config.max_positions),
            row_invariant=True,
            bytes_per_block=model.block_bytes,
            weight_bytes=model.weight_bytes,
            flags=(f"threads={self._num_threads}",),
            window=config.window,
        )


def unsupported_shape(folder: ModelFolder) -> str | None:
    """What of a model the kernels do not compute. Raises ModelFolderError if no decoder does."""
    config = read_config(folder)
    if config.head_size % 16 != 0 or config.head_size > MAX_HEAD_SIZE:
        return f"heads of {config.head_size}, only multiples of 16 up to {MAX_HEAD_SIZE}"
    return None


def usable_cores() -> int:
    """Cores by this process's affinity and its container's quota (cgroup 2), at least one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _shape(config: DecoderConfig) -> Shape:
    return Shape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        embedding_size=config.embedding_size,
        window=config.window or 0,
        norm_epsilon=config.norm_epsilon,
    )
