"""What the torch executor does on a GPU, on a CPU: kernels interpreted, a stand-in for recorded graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.support.interpreted
from services.contract.model_folder import ModelFolderError, open_model_folder
from services.engine.attention.paged import PagedAttention
from services.engine.executors.decode_graphs import Computed, batch_sizes
from services.engine.executors.kernel_proof import prove_kernel
from services.engine.executors.registry import UnprovenKernelError
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.sampling.device_sampler import DeviceSampler
from services.engine.step import SamplingSpec
from tests.support.executor_driver import GREEDY, Driven, ExecutorDriver
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model, random_ids
from tests.support.transformers_oracle import TransformersOracle

ALL_LOGPROBS = SamplingSpec(temperature=0.0, logprobs=VOCAB_SIZE)
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 2},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 20},
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        name: make_tiny_model(base / name, name, **(SMALL | changes)) for name, changes in FAMILIES.items()
    }


class Recorder:
    """Runs the computation again where a graph would be replayed; counts the replays by batch size."""

    def __init__(self) -> None:
        self.replayed: list[int] = []

    def __call__(
        self, compute: Callable[[], Computed], pool: Any
    ) -> tuple[Callable[[], None], Computed, Any]:
        computed = compute()

        def replay() -> None:
            for kept, fresh in zip(computed, compute(), strict=True):
                kept.copy_(fresh)
            self.replayed.append(len(computed[0]))

        return replay, computed, pool


def make_driver(
    folder: Path, record: Recorder | None = None, seed: int = 0, **options: Any
) -> ExecutorDriver:
    chosen = TorchOptions(**({"attention": "triton", "max_sequences": 5} | options))
    executor = TorchExecutor(open_model_folder(folder), chosen, record)
    executor.load()
    return ExecutorDriver(executor, num_blocks=64, seed=seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_our_kernels_compute_what_transformers_computes(folders: dict[str, Path], family: str) -> None:
    ids = random_ids(30)
    expected = TransformersOracle(folders[family]).logits(ids)[:, :VOCAB_SIZE].double().log_softmax(dim=1)
    driver = make_driver(folders[family])
    for end in (1, 17, 30):
        driven = driver.add(ids[:end], ALL_LOGPROBS)
        driver.generate([driven], 1, chunk=13)
        (logprobs,) = driven.outputs[0].logprobs or ()
        got = torch.tensor(logprobs.values[1:], dtype=torch.float64)
        assert (expected[end - 1, torch.tensor(logprobs.ids[1:])] - got).abs().max() < 1e-4
        driver.finish(driven)


@pytest.mark.parametrize("unfused", ["norm", "gate", "qkv,gate_up", ""])
def test_what_is_not_fused_computes_the_same(folders: dict[str, Path], unfused: str) -> None:
    names = frozenset(filter(None, unfused.split(",")))
    expected = _logprobs(make_driver(folders["qwen2"], attention="reference"))
    assert np.abs(_logprobs(make_driver(folders["qwen2"], unfused=names)) - expected).max() < 1e-4
    plain = _logprobs(make_driver(folders["qwen2"], attention="reference", unfused=names))
    assert np.abs(plain - expected).max() < 1e-5


def _logprobs(driver: ExecutorDriver) -> np.ndarray:
    driven = driver.add(random_ids(20), ALL_LOGPROBS)
    driver.generate([driven], 1)
    (logprobs,) = driven.outputs[0].logprobs or ()
    return np.array(logprobs.values)[1:][np.argsort(logprobs.ids[1:])]


def test_recorded_decode_steps_are_padded_and_draw_the_same(folders: dict[str, Path]) -> None:
    def drawn(driver: ExecutorDriver) -> list[list[int]]:
        sequences = [driver.add(random_ids(length, seed=length)) for length in (3, 15, 16)]
        driver.generate(sequences[:1], 2)
        driver.generate(sequences, 4)
        return [one.drawn for one in sequences]

    record = Recorder()
    expected = drawn(make_driver(folders["qwen2"], unfused=frozenset({"graphs"})))
    driver = make_driver(folders["qwen2"], record, max_sequences=3)
    assert record.replayed == []
    assert drawn(driver) == expected
    assert record.replayed == [1, 4, 2, 2]


def test_a_recorded_step_serves_rows_that_are_not_sampled_and_rows_with_nan(folders: dict[str, Path]) -> None:
    record = Recorder()
    driver = make_driver(folders["qwen2"], record, max_sequences=3)
    good, bad, prompt = (driver.add(random_ids(20, seed=seed)) for seed in range(3))
    driver.step((good, 20), (bad, 20), (prompt, 18))
    driver._executor.poison(bad.block_ids[:1])
    outputs = driver.step((good, 1), (bad, 1), (prompt, 1))
    assert record.replayed == [4]
    assert [output.is_usable for output in outputs] == [True, False, True]
    assert [len(output.ids) for output in outputs] == [1, 0, 0]


def test_padding_rows_write_to_the_null_block_alone(folders: dict[str, Path]) -> None:
    """Not where the row that a larger step before had in their place wrote: its block is free by now."""
    record = Recorder()
    driver = make_driver(folders["qwen2"], record, max_sequences=4)
    executor = driver._executor
    assert isinstance(executor, TorchExecutor) and isinstance(executor._attention, PagedAttention)
    *left, gone = (driver.add(random_ids(5, seed=seed)) for seed in range(4))
    driver.step(*((one, 5) for one in (*left, gone)))
    driver.step(*((one, 1) for one in (*left, gone)))
    driver.finish(gone)
    driver.step(*((one, 1) for one in left))
    assert record.replayed == [4, 4]
    assert executor._attention._pool[:, :, gone.block_ids].isnan().all()


def test_sizes_of_recorded_steps_reach_the_largest_batch() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(5) == [1, 2, 4, 8]
    assert batch_sizes(64) == [1, 2, 4, *range(8, 65, 8)]


class Watched:
    """Logits of sampled rows by sequence, in order."""

    def __init__(self, driver: ExecutorDriver) -> None:
        self.driver = driver
        self.rows: dict[int, list[np.ndarray]] = {}
        executor = driver._executor
        assert isinstance(executor, TorchExecutor)
        executor.watch_logits(self._keep)

    def _keep(self, sequence_ids: Any, logits: np.ndarray) -> None:
        for sequence_id, row in zip(sequence_ids, logits.copy(), strict=True):
            self.rows.setdefault(sequence_id, []).append(row)

    def of(self, driven: Driven) -> np.ndarray:
        return np.stack(self.rows[driven.sequence_id])


def test_invariant_logits_are_the_same_bits_alone_batched_chunked_warm_and_recorded(
    folders: dict[str, Path],
) -> None:
    options = {"is_invariant": True, "dtype": "bfloat16"}
    alone = Watched(make_driver(folders["qwen2"], **options))
    first = alone.driver.add(random_ids(20))
    alone.driver.generate([first], 2)
    other = Watched(make_driver(folders["qwen2"], Recorder(), seed=9, max_sequences=2, **options))
    beside, second = other.driver.add(random_ids(3, seed=1)), other.driver.add(random_ids(20))
    other.driver.generate([beside, second], 2, chunk=11)
    warm = other.driver.add(random_ids(20), prefix_of=second)
    other.driver.generate([warm], 2)
    assert np.array_equal(other.of(second), alone.of(first))
    assert np.array_equal(other.of(warm), alone.of(first))


def test_invariance_is_declared_and_refused_where_it_cannot_be_had(folders: dict[str, Path]) -> None:
    folder = open_model_folder(folders["llama"])
    assert TorchExecutor(folder, TorchOptions(attention="triton", is_invariant=True)).load().row_invariant
    with pytest.raises(ModelFolderError, match="'reference' cannot run here: no batch invariance"):
        TorchExecutor(folder, TorchOptions(is_invariant=True)).load()


@pytest.mark.parametrize("attention", ["reference", "triton"])
def test_float16(folders: dict[str, Path], attention: str) -> None:
    ids = random_ids(20)
    expected = TransformersOracle(folders["llama"]).logits(ids)[-1, :VOCAB_SIZE].numpy()
    watched = Watched(make_driver(folders["llama"], attention=attention, dtype="float16"))
    driven = watched.driver.add(ids)
    watched.driver.generate([driven], 1)
    assert np.abs(watched.of(driven)[0] - expected).max() < 0.05 * np.abs(expected).max()


def test_draws_on_the_device_are_those_of_the_host(folders: dict[str, Path]) -> None:
    def drawn(sampler: DeviceSampler | None) -> list[list[int]]:
        driver = make_driver(folders["llama"], attention="reference")
        if sampler is not None:
            assert isinstance(driver._executor, TorchExecutor)
            driver._executor._sampler = sampler
        ways = (
            GREEDY,
            SamplingSpec(seed=4, top_p=0.9, presence_penalty=0.4),
            SamplingSpec(seed=5, repetition_penalty=1.4, temperature=1.5),
        )
        sequences = [driver.add(random_ids(20, seed=seed), way) for seed, way in enumerate(ways)]
        driver.generate(sequences, 12)
        resumed = driver.add(sequences[1].ids[:-5], ways[1], num_prompt_tokens=20)
        driver.generate([resumed], 12)
        driver.finish(*sequences)
        return [one.drawn for one in (*sequences, resumed)]

    assert drawn(DeviceSampler(VOCAB_SIZE, torch.device("cpu"))) == drawn(None)


def test_a_trace_proves_the_kernel_or_says_what_it_shows() -> None:
    query = torch.randn(1, 2, 4, 8)

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)

    cpu = torch.device("cpu")
    assert "scaled_dot_product" in prove_kernel(step, ("scaled_dot_product_attention",), cpu)
    with pytest.raises(UnprovenKernelError, match="flash_fwd: it shows aten::") as caught:
        prove_kernel(step, ("flash_fwd",), cpu)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnprovenKernelError, match="none of its"):
        prove_kernel(lambda: torch.ones(2) + 1, ("flash_fwd",), cpu)


def test_the_kernel_is_in_the_fingerprint(folders: dict[str, Path]) -> None:
    folder = open_model_folder(folders["llama"])
    path = TorchExecutor(folder, TorchOptions(attention="auto")).load().kernel_path
    assert path.startswith("attention=reference (torch ")
    assert TorchExecutor(folder, TorchOptions(attention="triton")).load().kernel_path == (
        f"attention=triton (triton {tests.support.interpreted.triton.__version__})"
    )


def test_flash_is_refused_on_a_cpu(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelFolderError, match="attention backend 'flash' cannot run here: ") as caught:
        TorchExecutor(open_model_folder(folders["llama"]), TorchOptions(attention="flash")).load()
    assert "\n" not in str(caught.value)
