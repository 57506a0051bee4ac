"""Model folders: whole ones are told apart by revision, broken ones are refused in one line, fast."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.contract import model_folder
from services.contract.model_folder import (
    ModelFolderError,
    check_safetensors,
    open_model_folder,
    resolve_model,
)
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEMESH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def truncate(file: Path, by: int) -> None:
    with file.open("rb+") as stream:
        stream.truncate(file.stat().st_size - by)


def test_a_whole_folder(folder: Path) -> None:
    opened = open_model_folder(folder)
    assert opened.vocab_size == VOCAB_SIZE
    assert opened.config["model_type"] == "llama"
    assert opened.weights == (folder / "model.safetensors",)
    assert len(bytes.fromhex(opened.revision)) == 32


def test_eos_is_the_union_of_three_files(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=[5, 6])
    edit(folder / "generation_config.json", eos_token_id=7)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert open_model_folder(folder).eos_ids == {2, 5, 6, 7}


def test_no_eos_anywhere_is_an_empty_union(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token=None)
    assert open_model_folder(folder).eos_ids == frozenset()


def test_the_revision_follows_config_and_weights_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    first = open_model_folder(folder).revision
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert open_model_folder(copy).revision == first
    edit(copy / "config.json", rms_norm_eps=1e-6)
    second = open_model_folder(copy).revision
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    assert len({first, second, open_model_folder(copy).revision}) == 3


def test_the_revision_is_remembered_outside_the_folder(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(folder.iterdir())
    first = open_model_folder(folder).revision
    assert sorted(folder.iterdir()) == names
    monkeypatch.setattr(model_folder, "_hash_files", None)
    assert open_model_folder(folder).revision == first
    (remembered,) = (cache / "revisions").iterdir()
    monkeypatch.undo()
    monkeypatch.setenv("PAGEMESH_CACHE", str(cache))
    remembered.write_text("{")
    assert open_model_folder(folder).revision == first


def test_a_cache_that_cannot_be_written_only_costs_the_hash(folder: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert open_model_folder(folder).revision == open_model_folder(folder).revision


def test_weights_in_shards(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(content)
    weight_map = {"x": "b.safetensors", "y": "a.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert [file.name for file in open_model_folder(folder).weights] == ["a.safetensors", "b.safetensors"]
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelFolderError, match=r"b\.safetensors: is missing; download"):
        open_model_folder(folder)


def test_an_index_may_not_lead_outside(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../../secret"}}')
    with pytest.raises(ModelFolderError, match="names files outside its folder"):
        open_model_folder(folder)


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda p: (p / "config.json").unlink(), "has no config.json"),
    "config is no JSON": (lambda p: (p / "config.json").write_text("{"), "is not valid JSON"),
    "config is a list": (lambda p: (p / "config.json").write_text("[]"), "is not a JSON object"),
    "config is binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe\x00"), "is not valid JSON"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "has no model.safetensors"),
    "empty weights": (lambda p: (p / "model.safetensors").write_bytes(b""), "is corrupt"),
    "weights cut by a byte": (lambda p: truncate(p / "model.safetensors", 1), "is truncated or corrupt"),
    "weights cut in half": (lambda p: truncate(p / "model.safetensors", 9000), "is truncated or corrupt"),
    "weights cut in the header": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:200]),
        "is corrupt or truncated (200 bytes)",
    ),
    "weights are another format": (
        lambda p: (p / "model.safetensors").write_bytes(b"PK" * 999),
        "is corrupt",
    ),
    "weights header is no JSON": (
        lambda p: (p / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b"x" * 50),
        "its header is not valid",
    ),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "has no tokenizer (tokenizer.json)"),
    "tokenizer is no JSON": (lambda p: truncate(p / "tokenizer.json", 50), "is not valid JSON"),
    "tokenizer without vocabulary": (
        lambda p: (p / "tokenizer.json").write_text('{"model": {"type": "BPE"}}'),
        "holds no vocabulary",
    ),
    "tokenizer with an empty vocabulary": (
        lambda p: (p / "tokenizer.json").write_text('{"model": {"vocab": {}}}'),
        "holds no vocabulary",
    ),
    "tokenizer of another model": (
        lambda p: edit(p / "config.json", vocab_size=100),
        f"the tokenizer has {VOCAB_SIZE} ids, the embedding 100",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_folder_is_refused_in_one_line(folder: Path, name: str) -> None:
    break_it, cause = BREAKS[name]
    break_it(folder)
    with pytest.raises(ModelFolderError) as caught:
        open_model_folder(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert cause in message
    assert "; " in message
    assert "\n" not in message


def test_paths_that_are_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, cause in {
        "empty": "has no config.json",
        "file": "is not a folder",
        "nope": "no such folder",
    }.items():
        with pytest.raises(ModelFolderError, match=cause):
            open_model_folder(tmp_path / name)


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        ModelFolderError, match=r"cannot be read \(Permission denied\); check its permissions"
    ):
        check_safetensors(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["/nope/x", "./a/b", "../a", "a/b/c", "~/none-such", "word", ".", "a\\b/c"])
def test_a_name_like_a_path_never_asks_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "_fetch_from_hub", None)
    assert resolve_model(name) == Path(name).expanduser()


def test_an_existing_folder_wins_over_a_hub_id(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "_fetch_from_hub", None)
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_model(f"{tmp_path.name}/model") == Path(tmp_path.name, "model")


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("offline\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelFolderError) as caught:
        resolve_model("some/model", report=lambda _: None)
    assert str(caught.value).startswith(
        "some/model: is neither a folder nor a model the hub gave (offline); "
    )


def test_the_checks_need_no_torch_and_little_time(folder: Path) -> None:
    truncate(folder / "model.safetensors", 3)
    program = (
        "import sys; from pathlib import Path; from services.contract.model_folder import *\n"
        "try: open_model_folder(resolve_model(sys.argv[1]))\n"
        "except ModelFolderError as error: print(error)\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    started = time.monotonic()
    command = [sys.executable, "-c", program, str(folder)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert time.monotonic() - started < 10
    assert "is truncated or corrupt" in lines[0]
    assert lines[1] == "[]"
