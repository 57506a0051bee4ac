"""Runs steps of a Llama-family model in torch: one forward pass over all rows, then a draw per sampled row.

Keeps its own copy of every sequence's ids, so that a row may name the id in flight. Knows no requests.
"""

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.contract.model_folder import ModelFolder, ModelFolderError
from services.engine.attention.backend import AttentionBackend, AttentionShape, Span
from services.engine.attention.paged import PagedAttention, copy_once
from services.engine.attention.registry import UnsupportedAttentionError, make_backend
from services.engine.executors.decode_graphs import DecodeGraphs, Record
from services.engine.executors.device_clock import DeviceClock
from services.engine.executors.kernel_proof import prove_kernel
from services.engine.executors.row_ids import is_lost, known_ids
from services.engine.executors.row_outputs import remember, row_outputs
from services.engine.model.config import DecoderConfig, read_config
from services.engine.model.decoder import Decoder
from services.engine.model.footprint import Footprint
from services.engine.model.operators import Operators, PlainOperators
from services.engine.model.weights import DecoderWeights, load_weights
from services.engine.sampling.device_sampler import DeviceSampler
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import (
    ExecutorSpec,
    LogitsWatcher,
    Row,
    RowOutput,
    SamplingSpec,
    SequenceSpec,
    StepResult,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How to compute."""

    dtype: str = "float32"
    """Of weights, activations and KV: float32, bfloat16 or float16."""
    device: str = "cpu"
    attention: str = "reference"
    block_size: int = 16
    num_threads: int = 0
    """Threads of this process's products; 0 leaves the library's choice."""
    max_model_len: int = 0
    """Ids per sequence; 0 is the model's own limit."""
    max_sequences: int = 64
    """Rows of a recorded decode step at most."""
    unfused: frozenset[str] = frozenset()
    """What is switched off to measure it, of the settings' FUSIONS."""
    is_invariant: bool = False
    """A row's bits do not depend on its neighbours; needs attention triton."""


class TorchExecutor:
    """Implements Executor."""

    def __init__(self, folder: ModelFolder, options: TorchOptions, record: Record | None = None) -> None:
        """`record` records decode steps where there are no CUDA graphs: a test's stand-in."""
        self._folder = folder
        self._options = options
        self._record = record
        self._states: dict[int, SequenceState] = {}
        self._decoder: Decoder | None = None
        self._attention: AttentionBackend | None = None
        self._max_positions = 0
        self._footprint: Footprint | None = None
        self._graphs: DecodeGraphs | None = None
        self._sampler: Sampler | DeviceSampler = Sampler(folder.vocab_size)
        self._watcher: LogitsWatcher | None = None

    def load(self) -> ExecutorSpec:
        if self._options.num_threads > 0:
            torch.set_num_threads(self._options.num_threads)
        dtype, device = DTYPES[self._options.dtype], torch.device(self._options.device)
        config = self._read_config()
        shape = _attention_shape(config, self._options, dtype, device)
        try:
            self._attention = make_backend(self._options.attention, shape)
        except UnsupportedAttentionError as error:
            raise ModelFolderError(self._folder.path, str(error), "use another attention backend") from error
        weights = self._load_weights(config, dtype, device)
        self._footprint = Footprint(config, weights, dtype, device)
        self._decoder = Decoder(config, weights, _make_operators(self._options, device))
        limit = self._options.max_model_len or config.max_positions
        self._max_positions = min(limit, config.max_positions)
        if device.type == "cuda":
            self._sampler = DeviceSampler(self._folder.vocab_size, device)
            self._prove()
        return self._describe(shape)

    def allocate(self, num_blocks: int) -> None:
        assert self._attention is not None, "load comes first"
        self._attention.allocate(num_blocks)
        self._record_graphs()

    def add(self, sequence: SequenceSpec) -> None:
        state = self._states[sequence.sequence_id] = SequenceState(sequence)
        if isinstance(self._sampler, DeviceSampler):
            self._sampler.penalties.add(state)

    def remove(self, sequence_id: int) -> None:
        del self._states[sequence_id]
        if isinstance(self._sampler, DeviceSampler):
            self._sampler.penalties.remove(sequence_id)

    def poison(self, block_ids: Sequence[int]) -> None:
        assert self._attention is not None, "load comes first"
        with torch.inference_mode():
            self._attention.poison(block_ids)

    def unload(self) -> None:
        self._decoder = self._attention = self._graphs = None
        self._states.clear()

    def watch_logits(self, watcher: LogitsWatcher | None) -> None:
        self._watcher = watcher

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> StepResult:
        started = time.perf_counter_ns()
        lost = [is_lost(row, self._states[row.sequence_id]) for row in rows]
        clock = DeviceClock(self._device)
        logits, is_finite = self._forward(rows)
        clock.stop()
        drawn = self._draw(rows, logits)
        is_usable = [ok and not gone for ok, gone in zip(is_finite.tolist(), lost, strict=True)]
        outputs = row_outputs(rows, drawn, is_usable)
        remember(outputs, self._states)
        ended = time.perf_counter_ns()
        assert self._footprint is not None, "load comes first"
        return StepResult(
            outputs,
            step_us=(ended - started) // 1000,
            device_us=clock.elapsed_us(),
            activation_bytes=self._footprint.note_step(sum(len(row.chunk_ids) for row in rows), len(logits)),
        )

    def _read_config(self) -> DecoderConfig:
        return read_config(self._folder)

    def _load_weights(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device
    ) -> DecoderWeights:
        return load_weights(self._folder, config, dtype, device)

    def _forward(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Gives the sampled rows' logits [sampled rows, vocab], and whether each row is finite [rows]."""
        assert self._decoder is not None, "load comes first"
        assert self._attention is not None, "load comes first"
        ids = [token_id for row in rows for token_id in known_ids(row, self._states[row.sequence_id])]
        spans = [Span(row.start, len(row.chunk_ids), row.block_ids) for row in rows]
        if self._graphs is not None and self._graphs.can_run(spans):
            hidden, logits = self._graphs.run(ids, spans)
            sampled = [index for index, row in enumerate(rows) if row.is_sampled]
            return logits if len(sampled) == len(rows) else logits[sampled], hidden.isfinite().all(dim=1)
        positions = np.concatenate([np.arange(row.start, row.start + len(row.chunk_ids)) for row in rows])
        ends = np.cumsum([len(row.chunk_ids) for row in rows]) - 1
        arrays = {"ids": ids, "positions": positions, "ends": ends}
        arrays["sampled"] = ends[[row.is_sampled for row in rows]]
        moved = copy_once({name: np.asarray(it, np.int32) for name, it in arrays.items()}, self._device)
        self._attention.plan(spans)
        hidden = self._decoder.forward(moved["ids"], moved["positions"], self._attention)
        logits = self._decoder.logits(hidden.index_select(0, moved["sampled"]))
        return logits, _are_finite(hidden, moved["ends"])

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor) -> list[RowOutput]:
        states = [self._states[row.sequence_id] for row in rows if row.is_sampled]
        if self._watcher is not None and states:
            seen = logits[:, : self._folder.vocab_size].float().cpu().numpy()
            self._watcher([state.sequence_id for state in states], seen)
        return self._sampler.draw(logits, states) if states else []

    @property
    def _device(self) -> torch.device:
        return torch.device(self._options.device)

    @torch.inference_mode()
    def _record_graphs(self) -> None:
        is_wanted = "graphs" not in self._options.unfused and (self._device.type == "cuda" or self._record)
        if not is_wanted or not isinstance(self._attention, PagedAttention):
            return
        assert self._decoder is not None, "load comes first"
        rows, positions = self._options.max_sequences, self._max_positions
        self._graphs = DecodeGraphs(self._decoder, self._attention, rows, positions, self._record)
        self._graphs.record()

    def _prove(self) -> None:
        """Runs a prompt of two tokens and a third in a pool of two blocks under a profiler.

        Compiles what such steps need, too. Raises UnprovenKernelError.
        """
        assert self._attention is not None, "load comes first"
        self._attention.allocate(2)
        spec = SequenceSpec(0, (0, 0, 0), 3, SamplingSpec(temperature=0.0))
        rows = Row(0, (0, 0), 0, (1,), is_sampled=False), Row(0, (0,), 2, (1,), is_sampled=False)
        self._states[0] = SequenceState(spec)
        seen = prove_kernel(
            lambda: [self.run([row]) for row in rows], self._attention.trace_names, self._device
        )
        logger.info("attention kernel seen in a trace", extra={"kernel": seen})
        del self._states[0]

    def _describe(self, shape: AttentionShape) -> ExecutorSpec:
        assert self._attention is not None, "load comes first"
        assert self._footprint is not None, "load comes first"
        return ExecutorSpec(
            name="torch",
            dtype=self._options.dtype,
            kv_dtype=self._options.dtype,
            kernel_path=f"attention={self._attention.name} ({self._attention.kernel})",
            device=_describe_device(shape.device),
            vocab_size=self._folder.vocab_size,
            max_model_len=self._max_positions,
            row_invariant=self._options.is_invariant,
            bytes_per_block=shape.bytes_per_block,
            weight_bytes=self._footprint.weight_bytes,
            library_versions=(f"torch {torch.__version__}",),
            flags=_flags(self._options, shape.device),
            window=shape.window,
        )


def _make_operators(options: TorchOptions, device: torch.device) -> Operators:
    """Our kernels on a GPU, or where a test interprets them; plain torch on a CPU."""
    if device.type == "cpu" and options.attention != "triton":
        return PlainOperators(options.unfused)
    from services.engine.model.fused import FusedOperators  # noqa: PLC0415

    return FusedOperators(options.unfused, is_invariant=options.is_invariant)


def _describe_device(device: torch.device) -> str:
    if device.type == "cpu":
        return f"cpu/{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return f"cuda/{torch.cuda.get_device_name(device)}"


def _flags(options: TorchOptions, device: torch.device) -> tuple[str, ...]:
    """What else decides the numbers."""
    flags = [f"threads={torch.get_num_threads()}"] if device.type == "cpu" else []
    flags += [f"unfused={','.join(sorted(options.unfused))}"] if options.unfused else []
    return (*flags, "batch_invariant") if options.is_invariant else tuple(flags)


def _attention_shape(
    config: DecoderConfig, options: TorchOptions, dtype: torch.dtype, device: torch.device
) -> AttentionShape:
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        block_size=options.block_size,
        window=config.window,
        dtype=dtype,
        device=device,
        is_invariant=options.is_invariant,
    )


def _are_finite(hidden: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Tells for each row, whose last token is in `ends`, whether all its hidden states are finite [rows]."""
    num_bad = (~hidden.isfinite().all(dim=1)).cumsum(0).index_select(0, ends)
    return num_bad.diff(prepend=num_bad.new_zeros(1)) == 0
