"""Runs steps of a Llama-family model in torch: one forward pass over all rows, then a draw per sampled row.

Keeps its own copy of every sequence's ids, so that a row may name the id in flight. Knows no requests.
"""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.attention.backend import AttentionBackend, AttentionShape, Span
from services.engine.attention.registry import UnsupportedAttentionError, make_backend
from services.engine.model.config import DecoderConfig, read_config
from services.engine.model.decoder import Decoder
from services.engine.model.weights import load_weights
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import (
    PLACEHOLDER,
    ExecutorSpec,
    LogitsWatcher,
    Row,
    RowOutput,
    SequenceSpec,
    StepResult,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How to compute."""

    dtype: str = "float32"
    """Of weights, activations and KV: float32 or bfloat16."""
    device: str = "cpu"
    attention: str = "reference"
    block_size: int = 16
    num_threads: int = 0
    """Threads of this process's products; 0 leaves the library's choice."""
    max_model_len: int = 0
    """Ids per sequence; 0 is the model's own limit."""


class TorchExecutor:
    """Implements Executor."""

    def __init__(self, folder: ModelFolder, options: TorchOptions) -> None:
        self._folder = folder
        self._options = options
        self._states: dict[int, SequenceState] = {}
        self._decoder: Decoder | None = None
        self._attention: AttentionBackend | None = None
        self._sampler = Sampler(folder.vocab_size)
        self._watcher: LogitsWatcher | None = None

    def load(self) -> ExecutorSpec:
        if self._options.num_threads > 0:
            torch.set_num_threads(self._options.num_threads)
        config = read_config(self._folder)
        dtype, device = DTYPES[self._options.dtype], torch.device(self._options.device)
        shape = _attention_shape(config, self._options.block_size, dtype, device)
        try:
            self._attention = make_backend(self._options.attention, shape)
        except UnsupportedAttentionError as error:
            raise ModelFolderError(self._folder.path, str(error), "use another attention backend") from error
        self._decoder = Decoder(config, load_weights(self._folder, config, dtype, device))
        return self._describe(config, shape)

    def allocate(self, num_blocks: int) -> None:
        assert self._attention is not None, "load comes first"
        self._attention.allocate(num_blocks)

    def add(self, sequence: SequenceSpec) -> None:
        self._states[sequence.sequence_id] = SequenceState(sequence)

    def remove(self, sequence_id: int) -> None:
        del self._states[sequence_id]

    def poison(self, block_ids: Sequence[int]) -> None:
        assert self._attention is not None, "load comes first"
        with torch.inference_mode():
            self._attention.poison(block_ids)

    def unload(self) -> None:
        self._decoder = self._attention = None
        self._states.clear()

    def watch_logits(self, watcher: LogitsWatcher | None) -> None:
        self._watcher = watcher

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> StepResult:
        started = time.perf_counter_ns()
        hidden, logits = self._forward(rows)
        is_usable = [
            ok and not self._is_lost(row) for row, ok in zip(rows, _are_finite(hidden, rows), strict=True)
        ]
        computed = time.perf_counter_ns()
        drawn = iter(self._draw(rows, logits))
        outputs = tuple(
            _judge(row, next(drawn) if row.is_sampled else None, ok)
            for row, ok in zip(rows, is_usable, strict=True)
        )
        for output in outputs:
            for token_id in output.ids:
                self._states[output.sequence_id].append(token_id)
        ended = time.perf_counter_ns()
        return StepResult(outputs, step_us=(ended - started) // 1000, device_us=(computed - started) // 1000)

    def _forward(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gives final hidden states [tokens, hidden] and the sampled rows' logits [sampled rows, vocab]."""
        assert self._decoder is not None, "load comes first"
        assert self._attention is not None, "load comes first"
        ids = [token_id for row in rows for token_id in self._known_ids(row)]
        positions = np.concatenate([np.arange(row.start, row.start + len(row.chunk_ids)) for row in rows])
        self._attention.plan([Span(row.start, len(row.chunk_ids), row.block_ids) for row in rows])
        hidden = self._decoder.forward(self._indices(ids), self._indices(positions), self._attention)
        ends = np.cumsum([len(row.chunk_ids) for row in rows]) - 1
        sampled = ends[[row.is_sampled for row in rows]]
        return hidden, self._decoder.logits(hidden.index_select(0, self._indices(sampled)))

    def _known_ids(self, row: Row) -> tuple[int, ...]:
        """The row's ids, the one in flight when it was planned filled in."""
        if row.chunk_ids[-1] != PLACEHOLDER:
            return row.chunk_ids
        last = 0 if self._is_lost(row) else self._states[row.sequence_id].ids[_end(row) - 1]
        return (*row.chunk_ids[:-1], last)

    def _is_lost(self, row: Row) -> bool:
        """True if the step before, whose id this row waited for, could not draw it."""
        return row.chunk_ids[-1] == PLACEHOLDER and len(self._states[row.sequence_id].ids) < _end(row)

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor) -> list[RowOutput]:
        states = [self._states[row.sequence_id] for row in rows if row.is_sampled]
        if self._watcher is not None and states:
            seen = logits[:, : self._folder.vocab_size].float().cpu().numpy()
            self._watcher([state.sequence_id for state in states], seen)
        return self._sampler.draw(logits, states) if states else []

    def _indices(self, values: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(self._options.device)

    def _describe(self, config: DecoderConfig, shape: AttentionShape) -> ExecutorSpec:
        limit = self._options.max_model_len or config.max_positions
        instructions = torch.backends.cpu.get_cpu_capability()
        is_cpu = shape.device.type == "cpu"
        return ExecutorSpec(
            name="torch",
            dtype=self._options.dtype,
            kv_dtype=self._options.dtype,
            kernel_path=f"attention={self._options.attention}",
            device=f"cpu/{platform.machine()} {instructions}"
            if is_cpu
            else f"cuda/{torch.cuda.get_device_name(shape.device)}",
            vocab_size=self._folder.vocab_size,
            max_model_len=min(limit, config.max_positions),
            row_invariant=False,
            bytes_per_block=shape.bytes_per_block,
            library_versions=(f"torch {torch.__version__}",),
            flags=(f"threads={torch.get_num_threads()}",),
        )


def _attention_shape(
    config: DecoderConfig, block_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionShape:
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        block_size=block_size,
        window=config.window,
        dtype=dtype,
        device=device,
    )


def _are_finite(hidden: torch.Tensor, rows: Sequence[Row]) -> list[bool]:
    """Tells for each row whether all its hidden states are finite."""
    is_finite = hidden.isfinite().all(dim=1)
    if bool(is_finite.all()):
        return [True] * len(rows)
    firsts = np.cumsum([0, *(len(row.chunk_ids) for row in rows[:-1])])
    return [bool(ok) for ok in np.logical_and.reduceat(is_finite.cpu().numpy(), firsts)]


def _judge(row: Row, drawn: RowOutput | None, is_usable: bool) -> RowOutput:
    if drawn is None or not is_usable:
        return RowOutput(sequence_id=row.sequence_id, ids=(), logprobs=None, is_usable=is_usable)
    return drawn


def _end(row: Row) -> int:
    return row.start + len(row.chunk_ids)
