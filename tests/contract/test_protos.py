"""The contracts are clean, and the committed code is what they generate."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO_ROOT = ROOT / "protos"
BIN = Path(sys.executable).parent
BASELINE = str(PROTO_ROOT / "baseline.binpb")
PROTOS = sorted((PROTO_ROOT / "pagemesh/v1").glob("*.proto"))
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    outputs = [f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}"]
    outputs.append(f"--mypy_grpc_out=quiet:{folder}")
    files = [str(proto.relative_to(ROOT)) for proto in PROTOS]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", PROTO_ROOT.name, *outputs, *files]
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, check=True)
    return folder / "pagemesh/v1"


def test_no_file_is_missing_or_left_over(regenerated: Path) -> None:
    committed = {path.name for path in (ROOT / "pagemesh/v1").glob("*_pb2*")}
    assert committed == {path.name for path in regenerated.iterdir()}
    assert committed == {proto.stem + ending for proto in PROTOS for ending in GENERATED}


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: proto.stem)
def test_generated_code_equals_regeneration(regenerated: Path, proto: Path) -> None:
    for ending in GENERATED:
        name = proto.stem + ending
        assert (ROOT / "pagemesh/v1" / name).read_text() == (regenerated / name).read_text(), name


def test_buf_lint_finds_nothing() -> None:
    lint = _buf("lint")
    assert lint.returncode == 0, lint.stdout + lint.stderr


def test_the_wire_is_still_the_baselines() -> None:
    """Numbers and types that were once given stay; `make wire-baseline` is for additions."""
    breaking = _buf("breaking", "--against", BASELINE)
    assert breaking.returncode == 0, breaking.stdout + breaking.stderr


def test_a_changed_number_breaks_the_wire(tmp_path: Path) -> None:
    shutil.copytree(PROTO_ROOT, tmp_path / "protos")
    changed = tmp_path / "protos/pagemesh/v1/engine.proto"
    changed.write_text(changed.read_text().replace("uint64 seed = 8;", "uint64 seed = 98;"))
    breaking = _buf("breaking", "--against", BASELINE, folder=tmp_path / "protos")
    assert "Admit" in breaking.stdout and breaking.returncode != 0, breaking.stdout + breaking.stderr


def _buf(*arguments: str, folder: Path = PROTO_ROOT) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "buf"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_lint_rules_are_the_standard_ones_without_exceptions() -> None:
    rules = (PROTO_ROOT / "buf.yaml").read_text()
    assert "STANDARD" in rules and "COMMENTS" in rules
    assert "except" not in rules and "ignore" not in rules
    assert not any("buf:lint:ignore" in proto.read_text() for proto in PROTOS)
