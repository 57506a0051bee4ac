"""Comma-separated flags: read as written, refused in one line."""

import argparse
from pathlib import Path

import pytest

from bench.compare import sizes
from bench.flags import names, numbers


def test_values_are_separated_by_commas() -> None:
    assert numbers("1,16") == (1, 16)
    assert names({"bf16": 0, "int8": 0})("int8, bf16") == ("int8", "bf16")


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="int3 unknown; there are bf16, int8"):
        names(("bf16", "int8"))("bf16,int3")


def test_a_peers_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "peers.toml"
    file.write_text("[vllm")
    monkeypatch.setattr("sys.argv", ["sizes", f"--peers={file}", "--report"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert sizes.main() == 1
    assert capsys.readouterr().err.count("\n") == 1
