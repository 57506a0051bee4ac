"""Processes that cannot start say so in one line, path, cause and remedy, and end at once."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.contract.model_folder import resolve_model

ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 10.0
SERVICES = ("tokenizer", "engine", "scheduler", "gateway")
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+Z (?:debug|info|warning) ")


@dataclass(frozen=True, slots=True)
class Ended:
    """A process's end."""

    code: int
    line: str
    """The one line that is no log line."""
    elapsed_s: float


def start(service: str, *flags: str, **environment: str) -> Ended:
    """Runs a service that is to fail; fails itself if that takes more than one line."""
    command = [sys.executable, "-m", f"services.{service}", "--listen=127.0.0.1:0", *flags]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMESH_")}
    begin_s = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**own, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in ended.stderr.splitlines() if not LOG_LINE.match(line)]
    assert len(lines) == 1 and not ended.stdout, ended
    assert lines[0].startswith(f"pagemesh-{service}: ")
    return Ended(ended.returncode, lines[0], time.monotonic() - begin_s)


def copy_model(folder: Path) -> Path:
    """The default model without copying its weights."""
    folder.mkdir()
    for file in resolve_model("smollm2").iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def replace(file: Path, num_bytes: int) -> None:
    """Keeps only so many bytes of a linked file."""
    with file.resolve().open("rb") as original:
        content = original.read(num_bytes)
    file.unlink()
    file.write_bytes(content)


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def cut_weights(folder: Path) -> None:
    replace(folder / "model.safetensors", 1_000_000)


def cut_tokenizer(folder: Path) -> None:
    replace(folder / "tokenizer.json", 100_000)


HARM = {
    no_folder: ("", "no such folder"),
    empty_folder: ("", "has no config.json"),
    cut_weights: ("model.safetensors", r"is truncated or corrupt \(1000000 bytes, \d+ expected\)"),
    cut_tokenizer: ("tokenizer.json", "is not valid JSON"),
}
"""What is done to a model folder: the file that is named, and the cause."""


@pytest.mark.parametrize("service", ["tokenizer", "engine"])
@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_a_model_folder_that_is_no_good(tmp_path: Path, service: str, harm: Callable[[Path], None]) -> None:
    folder = copy_model(tmp_path / "model")
    harm(folder)
    file, cause = HARM[harm]
    ended = start(service, f"--model={folder}")
    place = re.escape(str(folder / file) if file else str(folder))
    assert ended.code == 1 and ended.elapsed_s < TIME_LIMIT_S
    assert re.fullmatch(rf"pagemesh-{service}: {place}:? {cause}; \w.+", ended.line), ended.line


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Held by a socket that would share it with another that asks to."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("service", "flag"), [*((service, "listen") for service in SERVICES), ("scheduler", "metrics-listen")]
)
def test_a_port_in_use(taken_port: int, service: str, flag: str) -> None:
    more = ["--executor=scripted"] if service == "engine" else []
    ended = start(service, f"--{flag}=127.0.0.1:{taken_port}", *more)
    assert ended.code == 3
    words = f"cannot listen on 127.0.0.1:{taken_port}: address already in use; "
    assert words in ended.line


BAD_SETTINGS = [
    ("tokenizer", "--encode-threads=many", "--encode-threads .*; given 'many'"),
    ("engine", "--num-blocks=2", "num_blocks is 2; at least 3"),
    ("engine", "--unfused=norm,everything", "there is no everything among qkv, gate_up, norm, gate, graphs"),
    ("scheduler", "--no-such-setting=1", "--no-such-setting"),
    ("scheduler", "--listen=7600", "--listen .* expected host:port .*; given '7600'"),
    ("gateway", "--schedulers=127.0.0.1:7620,here", "--schedulers .* expected host:port"),
    ("gateway", "--api-keys-file=/nowhere", "deployment_key"),
]


@pytest.mark.parametrize(("service", "flag", "words"), BAD_SETTINGS)
def test_a_bad_setting(service: str, flag: str, words: str) -> None:
    ended = start(service, flag)
    assert ended.code == 2
    assert re.search(words, ended.line), ended.line


def test_a_bad_setting_in_the_environment() -> None:
    ended = start("scheduler", PAGEMESH_SCHEDULER_DRAIN_S="soon")
    assert ended.code == 2
    assert "PAGEMESH_SCHEDULER_DRAIN_S" in ended.line and "'soon'" in ended.line


def test_a_device_that_is_not_here() -> None:
    ended = start("engine", "--device=no-such")
    assert ended.code == 1 and "device 'no-such' cannot be used here" in ended.line


def test_attention_that_cannot_be_honoured() -> None:
    """Never another one instead."""
    ended = start("engine", "--attention=flash")
    assert ended.code == 1
    assert "attention backend 'flash' cannot run here: " in ended.line
    assert "generation 2: no device cpu" in ended.line
