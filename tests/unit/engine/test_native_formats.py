"""Native kernels of quantized weights against their reference arithmetic, bit by bit, on each usable path."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.contract.model_folder import ModelFolderError, open_model_folder
from services.engine.executors.native_executor import NativeExecutor, NativeOptions
from services.engine.executors.registry import ExecutorRequest, UnsupportedFormatError, make_executor
from services.engine.native.build import find_library
from services.engine.native.library import KernelPath, Library, NativeError
from services.engine.native.linear import ColumnOrder, PackedLinear, pack_bf16, pack_groups, pack_int8
from services.engine.quantization.groups import (
    GroupedRows,
    quantize_int4,
    quantize_int8_groups,
)
from services.engine.quantization.kv import quantize_heads
from services.engine.quantization.rows import multiply, quantize_rows, split_rows
from services.engine.step import ExecutorSpec, SamplingSpec
from tests.support.executor_driver import ExecutorDriver
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model

SIZES = ((32, 64), (100, 576), (576, 1536), (70, 2016))
"""Out and in: whole panels and not, one pass along K and several, an odd number of 32s."""
ROWS = (1, 3, 16, 17, 50)
ALL_LOGPROBS = SamplingSpec(temperature=0.0, logprobs=VOCAB_SIZE)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(find_library())


@pytest.fixture(scope="module", params=[KernelPath.AVX512, KernelPath.AVX512_BF16, KernelPath.AMX])
def path(request: pytest.FixtureRequest, library: Library) -> KernelPath:
    path: KernelPath = request.param
    if path > library.best_path():
        pytest.skip(f"this processor has no {path.name}")
    return path


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def _weight(size: tuple[int, int]) -> torch.Tensor:
    return torch.randn(size) * torch.rand(size[0], 1)


@pytest.mark.parametrize("size", SIZES)
def test_int8_is_its_reference_bit_by_bit(library: Library, path: KernelPath, size: tuple[int, int]) -> None:
    weight = quantize_rows(_weight(size))
    with pack_int8(library, weight, ColumnOrder.PLAIN, None) as packed:
        for count in ROWS:
            rows = torch.randn(count, size[1]) * 10 * torch.rand(count, 1)
            assert torch.equal(packed.apply(rows, path), multiply(split_rows(rows), weight))


def test_int8_rows_that_are_not_finite_or_zero(library: Library, path: KernelPath) -> None:
    weight = quantize_rows(_weight((48, 96)))
    rows = torch.randn(4, 96)
    rows[0, 3], rows[1, 3], rows[2] = torch.nan, -torch.inf, 0
    with pack_int8(library, weight, ColumnOrder.PLAIN, None) as packed:
        product = packed.apply(rows, path)
    assert not product[:2].isfinite().any()
    assert not product[2].any()
    assert torch.equal(product[3:], multiply(split_rows(rows[3:]), weight))


@pytest.mark.parametrize("quantize", [quantize_int4, quantize_int8_groups])
@pytest.mark.parametrize("size", SIZES)
def test_groups_are_their_dequantized_weights_in_bf16(
    library: Library, path: KernelPath, size: tuple[int, int], quantize: object
) -> None:
    groups: GroupedRows = quantize(_weight(size))  # type: ignore[operator]
    plain = groups.dequantize().bfloat16()
    with (
        pack_groups(library, groups, ColumnOrder.PLAIN, None) as packed,
        pack_bf16(library, plain, ColumnOrder.PLAIN, None) as expected,
    ):
        for count in ROWS:
            rows = torch.randn(count, size[1])
            assert torch.equal(packed.apply(rows, path), expected.apply(rows, path))


def _packed(library: Library, name: str) -> PackedLinear:
    weight = _weight((100, 576))
    if name == "int8":
        return pack_int8(library, quantize_rows(weight), ColumnOrder.PLAIN, None)
    if name == "int4":
        return pack_groups(library, quantize_int4(weight), ColumnOrder.PLAIN, None)
    return pack_bf16(library, weight.bfloat16(), ColumnOrder.PLAIN, None)


@pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
def test_a_row_never_sees_its_neighbours(library: Library, path: KernelPath, name: str) -> None:
    rows = torch.randn(70, 576)
    with _packed(library, name) as packed:
        together = packed.apply(rows, path)
        for row in (0, 15, 16, 37, 69):
            assert torch.equal(packed.apply(rows[row : row + 1], path)[0], together[row])
        assert torch.equal(packed.apply(rows.flip(0), path).flip(0), together)


def test_inputs_that_do_not_fill_groups_are_refused(library: Library) -> None:
    with pytest.raises(NativeError, match="multiple of 32"):
        pack_groups(library, GroupedRows(*_odd_groups()), ColumnOrder.PLAIN, None)


def _odd_groups() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    halves = torch.zeros(16, 2, dtype=torch.float16)
    return torch.zeros(16, 48, dtype=torch.uint8), halves, halves


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), "qwen2", intermediate_size=96, **shape)


def _load(folder: Path, **options: object) -> tuple[NativeExecutor, ExecutorSpec]:
    executor = NativeExecutor(
        open_model_folder(folder),
        find_library(),
        NativeOptions(num_threads=1, **options),  # type: ignore[arg-type]
    )
    return executor, executor.load()


def _logprobs(folder: Path, **options: object) -> torch.Tensor:
    """Of eight greedy tokens after a fixed prompt; [tokens, vocabulary]."""
    executor, _ = _load(folder, **options)
    driver = ExecutorDriver(executor, 16)
    driven = driver.add(range(3, 60), ALL_LOGPROBS)
    driver.generate([driven], 8)
    executor.unload()
    values = torch.zeros(8, VOCAB_SIZE, dtype=torch.float64)
    for row, output in enumerate(driven.outputs):
        assert output.logprobs is not None
        values[row, list(output.logprobs[0].ids)] = torch.tensor(
            output.logprobs[0].values, dtype=torch.float64
        )
    return values


def test_int8_models_agree_on_all_paths(folder: Path, library: Library) -> None:
    """Closely, not exactly: the linears' bits are equal, attention's are not."""
    paths = [path for path in KernelPath if KernelPath.NONE < path <= library.best_path()]
    logprobs = [_logprobs(folder, weights="int8", path=path) for path in paths]
    for other in logprobs[1:]:
        assert (other[0] - logprobs[0][0]).abs().max() < 0.05


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_quantized_model_is_close_to_the_plain_one(folder: Path, weights: str) -> None:
    plain, quantized = _logprobs(folder)[0], _logprobs(folder, weights=weights)[0]
    distance = float((plain.exp() * (plain - quantized)).sum())
    assert 0 < distance < {"int8": 0.01, "int4": 0.3}[weights]


def test_the_spec_names_the_format(folder: Path) -> None:
    for weights, dtype in (("plain", "bfloat16"), ("int8", "int8"), ("int4", "int4")):
        executor, spec = _load(folder, weights=weights)
        assert (spec.dtype, spec.kv_dtype) == (dtype, "bfloat16")
        assert spec.row_invariant
        executor.unload()


@pytest.mark.parametrize("name", ["torch", "scripted"])
@pytest.mark.parametrize("option", ["weights", "kv_dtype"])
def test_other_executors_refuse_quantized_formats(name: str, option: str) -> None:
    request = ExecutorRequest("nowhere", "cpu", "float32", "auto", 16, 1, 0, None, **{option: "int8"})  # type: ignore[arg-type]
    with pytest.raises(
        UnsupportedFormatError, match=f"{name}' has no {option} 'int8'; use --executor native"
    ):
        make_executor(name, request)


def test_int4_refuses_a_shape_without_whole_groups(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="multiple of 32 inputs"):
        _load(make_tiny_model(tmp_path / "odd"), weights="int4")


def _kv_logprobs(folder: Path, path: KernelPath, chunk: int, **options: object) -> torch.Tensor:
    """As `_logprobs`, of a prompt computed in chunks, beside a neighbour."""
    executor, _ = _load(folder, path=path, **options)
    driver = ExecutorDriver(executor, 32)
    driven = [driver.add(range(3, 60), ALL_LOGPROBS), driver.add(range(9, 40), ALL_LOGPROBS)]
    driver.generate(driven, 8, chunk)
    warm = driver.add(range(3, 60), ALL_LOGPROBS, prefix_of=driven[0])
    driver.generate([warm], 8, chunk)
    executor.unload()
    assert [output.logprobs for output in warm.outputs] == [output.logprobs for output in driven[0].outputs]
    return torch.tensor([output.logprobs[0].values for output in driven[0].outputs if output.logprobs])


def test_int8_kv_is_its_reference(folder: Path, path: KernelPath) -> None:
    """In the first layer, which sees equal states whatever the cache: keys are bf16 before they are codes."""
    stored = {}
    for kv_dtype in ("plain", "int8"):
        executor, _ = _load(folder, path=path, kv_dtype=kv_dtype)
        driver = ExecutorDriver(executor, 16)
        driven = driver.add(range(3, 40))
        driver.step((driven, 37))
        places = [(driven.block_ids[token // 16], head, token % 16) for token in range(37) for head in (0, 1)]
        pairs = [executor.model.read_kv(0, *place, 16) for place in places]
        stored[kv_dtype] = [torch.tensor(np.stack(column)) for column in zip(*pairs, strict=True)]
        executor.unload()
    (keys, values), (quantized_keys, quantized_values) = stored["plain"], stored["int8"]
    assert torch.equal(quantized_keys, quantize_heads(keys).dequantize().bfloat16().float())
    steps = quantize_heads(values).scales[:, None]
    assert ((quantized_values - values).abs() <= 1.1 * steps).all()


def test_int8_kv_does_not_depend_on_chunks_or_cached_blocks(folder: Path, path: KernelPath) -> None:
    whole = _kv_logprobs(folder, path, 10_000, kv_dtype="int8")
    for chunk in (1, 7, 16, 17):
        assert torch.equal(_kv_logprobs(folder, path, chunk, kv_dtype="int8"), whole)


def test_int8_kv_is_close_to_bf16_kv_and_nearly_half_its_size(folder: Path, path: KernelPath) -> None:
    plain, quantized = (_logprobs(folder, path=path, kv_dtype=kv)[0] for kv in ("plain", "int8"))
    assert 0 < float((plain.exp() * (plain - quantized)).sum()) < 0.01
    sizes = [_load(folder, kv_dtype=kv)[1].bytes_per_block for kv in ("plain", "int8")]
    assert sizes[1] < 0.7 * sizes[0]  # heads of 16: scales weigh more than in heads of 64


def test_memory_by_format(tmp_path: Path) -> None:
    """Layers large enough to be seen beside the huge pages that each of them begins."""
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "head_dim": 64}
    folder = make_tiny_model(tmp_path / "wide", num_hidden_layers=1, **shape)
    sizes = {}
    for weights in ("plain", "int8", "int4"):
        executor, spec = _load(folder, weights=weights)
        driver = ExecutorDriver(executor, 16)
        driver.generate([driver.add(range(3, 60))], 1)
        assert executor.model.activation_bytes > 57 * 1024 * 4
        sizes[weights] = spec.weight_bytes
        executor.unload()
    exact = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert 2 * exact < sizes["plain"] < 2.8 * exact
    assert exact < sizes["int8"] < 1.6 * exact
    assert exact / 2 < sizes["int4"] < 1.1 * exact
