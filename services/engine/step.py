"""What the running set and an executor say to each other: rows in, drawn ids out.

An executor knows no requests, queues or caches; the running set knows no tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

PLACEHOLDER = -1
"""Stands for the id that the step in flight will draw for the same sequence (lag 1)."""

NULL_BLOCK = 0
"""Block id that is never handed out; stands in block tables where nothing is read."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one sequence draws. Order: bias, penalties, min-tokens mask, temperature, top-k, top-p, min-p."""

    temperature: float = 1.0
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: none; 0: the chosen id only; k: the k likeliest as well."""
    stop_ids: frozenset[int] = frozenset()
    """Masked until min_tokens output ids exist."""
    seed: int = 0
    choice: int = 0


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A sequence as an executor meets it; it keeps its own copy of the ids and appends what it draws."""

    sequence_id: int
    ids: tuple[int, ...]
    """Prompt and output so far."""
    num_prompt_tokens: int
    sampling: SamplingSpec


@dataclass(frozen=True, slots=True)
class Row:
    """Positions [start, start + len(chunk_ids)) of one sequence, to be run in this step."""

    sequence_id: int
    chunk_ids: tuple[int, ...]
    """Ids to run; only the last may be PLACEHOLDER."""
    start: int
    """Absolute position of chunk_ids[0]; everything before it is in the KV cache."""
    block_ids: Sequence[int]
    """Block table covering at least start + len(chunk_ids) positions; a snapshot. With a sliding window the
    blocks before position start - window + 1 may be NULL_BLOCK: nothing that lies there may count."""
    is_sampled: bool
    """True if the last position's logits draw the next id, whose position is start + len(chunk_ids)."""


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """Log-probabilities of the raw logits for one drawn id: the chosen id first, then the likeliest."""

    ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RowOutput:
    """What one row came to, in the order of the rows."""

    sequence_id: int
    ids: tuple[int, ...]
    """Drawn ids (empty for rows that are not sampled or not usable)."""
    logprobs: tuple[DrawnLogprobs, ...] | None
    """One per drawn id, if the sequence asked."""
    is_usable: bool
    """False if its values are not finite or every id is masked: it ends, nothing of it is indexed."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of one step."""

    outputs: tuple[RowOutput, ...]
    step_us: int
    device_us: int
    activation_bytes: int = 0
    """What the executor holds, or held at most, for the tensors of its steps so far."""


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """What an executor declares once it is loaded; the engine's fingerprint is made of it."""

    name: str
    dtype: str
    kv_dtype: str
    kernel_path: str
    device: str
    vocab_size: int
    """Ids that may be given or drawn (the tokenizer's, not the padded embedding's)."""
    max_model_len: int
    row_invariant: bool
    bytes_per_block: int
    weight_bytes: int = 0
    """Memory of the weights as they are held."""
    library_versions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    max_ids_per_step: int = 1
    """Ids one row may draw in one step; the planner reserves blocks for so many."""
    window: int | None = None
    """Set by an executor that takes NULL_BLOCK for blocks that lie wholly behind a row's sliding window (a
    position sees itself and window - 1 before it, in every layer); None: all blocks are kept."""


class Executor(Protocol):
    """Runs steps. All calls but the constructor come from one compute thread and block it."""

    def load(self) -> ExecutorSpec:
        """Loads weights. Raises ModelFolderError if the folder is not usable."""

    def allocate(self, num_blocks: int) -> None:
        """Allocates the KV pool once, block ids 0..num_blocks-1, block 0 being the null block."""

    def add(self, sequence: SequenceSpec) -> None:
        """Gets to know a sequence before its first row."""

    def remove(self, sequence_id: int) -> None:
        """Forgets a sequence; its id is not used again."""

    def run(self, rows: Sequence[Row]) -> StepResult:
        """Runs all rows as one batch. A raise makes the whole batch suspect."""

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fills blocks with NaN (a test's proof that freed blocks are never read)."""

    def unload(self) -> None:
        """Gives the memory back."""


LogitsWatcher = Callable[[Sequence[int], npt.NDArray[np.float32]], None]
"""Gets sampled rows' sequence ids and raw logits [rows, vocab_size] before the draw; copies what it keeps."""


class LogitsSource(Executor, Protocol):
    """An executor that shows its logits to a bench or a test; serving never asks."""

    def watch_logits(self, watcher: LogitsWatcher | None) -> None:
        """From the next step on; None ends it."""
