"""Three gauges of memory: weights, KV, activations."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file

from services.contract.model_folder import open_model_folder
from services.engine.core.running_set import Plan
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.metrics import EngineMetrics
from services.engine.step import ExecutorSpec, StepResult
from tests.support.executor_driver import ExecutorDriver
from tests.support.tiny_models import make_tiny_model


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_weights_are_those_of_the_files(tmp_path: Path, family: str, dtype: str, itemsize: int) -> None:
    """A tied head (llama) counts once; biases (qwen2) count."""
    folder = make_tiny_model(tmp_path, family)
    stored = load_file(folder / "model.safetensors")
    spec = TorchExecutor(open_model_folder(folder), TorchOptions(dtype=dtype)).load()
    assert spec.weight_bytes == sum(tensor.numel() for tensor in stored.values()) * itemsize


def test_activations_are_those_of_the_largest_step(tmp_path: Path) -> None:
    executor = TorchExecutor(open_model_folder(make_tiny_model(tmp_path)), TorchOptions())
    executor.load()
    seen: list[int] = []
    run = executor.run
    executor.run = lambda rows: _noted(run(rows), seen)  # type: ignore[method-assign]
    driver = ExecutorDriver(executor, 32)
    driven = driver.add(range(3, 203))
    driver.step((driven, 100))
    driver.step((driven, 100))
    driver.step((driven, 1))
    assert seen[0] < seen[1] == seen[2]  # the second also has logits; the third is small
    assert seen[0] == 100 * 3 * (48 + 96) * 4


def _noted(result: StepResult, seen: list[int]) -> StepResult:
    seen.append(result.activation_bytes)
    return result


def test_the_gauges() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    spec = ExecutorSpec("x", "d", "k", "p", "cpu", 10, 20, True, bytes_per_block=1000, weight_bytes=77)
    metrics.note_load(spec, num_blocks=5)
    plan = cast(Plan, SimpleNamespace(num_tokens=1, rows=()))
    metrics.note_step(plan, StepResult((), 1, 1, activation_bytes=123))
    kinds = {
        kind: registry.get_sample_value("pagemesh_engine_memory_bytes", {"kind": kind})
        for kind in ("weights", "kv", "activations")
    }
    assert kinds == {"weights": 77, "kv": 5000, "activations": 123}
