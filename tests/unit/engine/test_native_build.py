"""The library is built once per version of its sources; where it cannot be, one line says why."""

import ctypes
import logging
from pathlib import Path
from typing import Any

import pytest

from services.engine.executors.native_executor import NativeExecutor
from services.engine.executors.registry import (
    ExecutorRequest,
    UnsupportedFormatError,
    UnusableExecutorError,
    make_executor,
)
from services.engine.executors.torch_executor import TorchExecutor
from services.engine.native import build
from services.engine.native.build import NativeUnavailableError, find_library, library_path
from tests.support.tiny_models import make_tiny_model


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one function, which compiles in a moment, and a cache of its own."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("PAGEMESH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_processor_features", lambda: build.NEEDED_FEATURES)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def request_for(folder: Path, **changes: Any) -> ExecutorRequest:
    plain: dict[str, Any] = {
        "model": str(folder),
        "device": "cpu",
        "dtype": "auto",
        "attention": "auto",
        "block_size": 16,
        "num_threads": 1,
        "max_model_len": 0,
        "script": None,
    }
    return ExecutorRequest(**(plain | changes))


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise NativeUnavailableError("no C++ compiler (g++ or c++) to build the native step")

    monkeypatch.setattr("services.engine.executors.registry.find_library", refuse)


def test_a_library_is_built_once_and_again_when_a_source_changes(sources: Path) -> None:
    first = find_library()
    built_ns = first.stat().st_mtime_ns
    assert ctypes.CDLL(str(first)).answer() == 42
    assert find_library() == first and first.stat().st_mtime_ns == built_ns
    (sources / "answer.cpp").write_text('extern "C" int answer() { return 43; }\n')
    second = find_library()
    assert second != first and ctypes.CDLL(str(second)).answer() == 43
    assert sorted(path.name for path in first.parent.iterdir()) == sorted((first.name, second.name))


def test_other_flags_make_another_library(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_library()
    monkeypatch.setenv(build.MORE_FLAGS, "-O1")
    assert find_library() == library_path((*build.FLAGS, "-O1")) != plain


def test_a_built_library_needs_no_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = find_library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_library() == built


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("compiler", "no C++ compiler (no-such-compiler)"),
        ("source", "the compiler refuses the native step: "),
        ("processor", "the native step needs avx512f"),
        ("cache", "the native step cannot be built in "),
    ],
)
def test_why_there_is_no_library_is_one_line(
    sources: Path, monkeypatch: pytest.MonkeyPatch, cause: str, reason: str
) -> None:
    if cause == "compiler":
        monkeypatch.setenv("CXX", "no-such-compiler")
    elif cause == "source":
        (sources / "answer.cpp").write_text("this is no C++\n")
    elif cause == "processor":
        without = build.NEEDED_FEATURES - {"avx512f"}
        monkeypatch.setattr(build, "_processor_features", lambda: without)
    else:
        (sources / "file").touch()
        monkeypatch.setenv("PAGEMESH_CACHE", str(sources / "file"))
    with pytest.raises(NativeUnavailableError) as caught:
        find_library()
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


def test_auto_is_native_where_it_can_be(folder: Path) -> None:
    made = make_executor("auto", request_for(folder))
    assert isinstance(made.executor, NativeExecutor)
    assert made.dtype == "bfloat16"


@pytest.mark.usefixtures("no_library")
def test_auto_without_a_library_is_torch_and_says_why(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        made = make_executor("auto", request_for(folder))
    assert isinstance(made.executor, TorchExecutor)
    assert made.dtype == "float32"
    assert [
        record.__dict__["reason"] for record in caplog.records if record.message == "computing in torch"
    ] == ["no C++ compiler (g++ or c++) to build the native step"]


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize(("name", "weights"), [("native", "plain"), ("auto", "int8")])
def test_what_only_the_native_step_computes_never_falls_back(folder: Path, name: str, weights: str) -> None:
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler"):
        make_executor(name, request_for(folder, weights=weights))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"block_size": 32}, "in blocks of 32, only of 16"),
        ({"dtype": "float32"}, "in float32"),
        ({"attention": "reference"}, "with attention reference"),
    ],
)
def test_what_the_native_step_does_not_compute_is_refused_or_left_to_torch(
    folder: Path, changes: dict[str, Any], cause: str
) -> None:
    with pytest.raises(UnusableExecutorError, match=cause):
        make_executor("native", request_for(folder, **changes))
    assert isinstance(make_executor("auto", request_for(folder, **changes)).executor, TorchExecutor)


def test_heads_that_are_no_whole_tiles_are_left_to_torch(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, head_dim=24)
    with pytest.raises(UnusableExecutorError, match="heads of 24, only multiples of 16"):
        make_executor("native", request_for(folder))
    assert isinstance(make_executor("auto", request_for(folder)).executor, TorchExecutor)


def test_torch_has_no_quantized_weights(folder: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="has no weights 'int8'"):
        make_executor("torch", request_for(folder, weights="int8"))
