"""A GGUF file as a model: converted once into the cache, again when it changed, refused in one line."""

import os
from pathlib import Path

import gguf
import pytest

from services.contract import gguf_folder
from services.contract.model_folder import ModelFolderError, resolve_model


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEMESH_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "some.Q4_0.gguf"
    file.write_bytes(b"weights")
    return file


def quiet(_: str) -> None:
    """Takes progress and says nothing."""


def test_a_file_is_converted_once_and_again_when_it_changed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[bytes] = []

    def convert(source: Path, target: Path) -> None:
        converted.append(source.read_bytes())
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(gguf_folder, "convert", convert)
    first = resolve_model(str(file), quiet)
    assert resolve_model(str(file), quiet) == first
    assert (first / "config.json").exists()
    file.write_bytes(b"others!")
    os.utime(file, ns=(1, 1))
    assert resolve_model(str(file), quiet) != first
    assert converted == [b"weights", b"others!"]


def test_a_file_of_another_family_is_refused_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(file, "nothing-we-know")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFolderError, match="cannot be converted"):
        resolve_model(str(file), quiet)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_a_name_that_is_no_file_stays_a_path(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path / "missing.gguf"), quiet) == tmp_path / "missing.gguf"
