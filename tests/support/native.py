"""Native executors of tiny models, and the logits that they and the oracle give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file, save_file

from services.contract.model_folder import open_model_folder
from services.engine.executors.native_executor import NativeExecutor, NativeOptions
from services.engine.native.build import find_library
from services.engine.native.library import KernelPath, Library
from services.engine.step import LogitsSource
from tests.support.executor_driver import Driven, ExecutorDriver
from tests.support.tiny_models import VARIANTS, make_tiny_model

Logits = npt.NDArray[np.float32]

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **VARIANTS,
    "heads of 64, three to a key": ("llama", {"head_dim": 64}),
    "heads of 80, one to a key": ("llama", {"head_dim": 80, "num_key_value_heads": 6}),
    "heads of 96, six to a key": ("llama", {"head_dim": 96, "num_attention_heads": 12}),
    "heads of 128, 24 to a key": (
        "llama",
        {"head_dim": 128, "num_attention_heads": 24, "num_key_value_heads": 1},
    ),
    "odd sizes": ("llama", {"hidden_size": 42, "intermediate_size": 77, "vocab_size": 265}),
}


def make_rounded_model(folder: Path, name: str) -> Path:
    """One of MODELS, its weights rounded to bf16 in the files, so that only activations are rounded later."""
    family, changes = MODELS[name]
    make_tiny_model(folder, family, **changes)
    file = folder / "model.safetensors"
    tensors = {key: tensor.bfloat16().float() for key, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def usable_paths() -> list[KernelPath]:
    """Of this processor; at least plain AVX512."""
    best = Library(find_library()).best_path()
    return [path for path in KernelPath if KernelPath.NONE < path <= best]


def make_native(folder: Path, path: KernelPath, *, num_threads: int = 1) -> NativeExecutor:
    """Loaded."""
    options = NativeOptions(num_threads=num_threads, path=path)
    executor = NativeExecutor(open_model_folder(folder), find_library(), options)
    executor.load()
    return executor


class Watched:
    """Drives an executor and keeps the logits of every sampled row, by sequence."""

    def __init__(
        self, executor: LogitsSource, *, num_blocks: int = 256, seed: int = 0, window: int | None = None
    ) -> None:
        self.driver = ExecutorDriver(executor, num_blocks, seed, window)
        self._seen: dict[int, list[Logits]] = {}
        executor.watch_logits(self._watch)

    def logits(self, driven: Driven) -> Logits:
        """[sampled rows, vocabulary], in the order of the draws."""
        return np.stack(self._seen[driven.sequence_id])

    def _watch(self, sequence_ids: Sequence[int], logits: Logits) -> None:
        for sequence_id, row in zip(sequence_ids, logits, strict=True):
            self._seen.setdefault(sequence_id, []).append(row.copy())
