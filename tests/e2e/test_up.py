"""`pagemesh up` as a person uses it: ready, asked, hurt, ended."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from services.supervisor.plan import MeshShape, documented_ports
from services.supervisor.ports import free_ports, is_free

PAGEMESH = [sys.executable, "-c", "from pagemesh.cli import main; main()"]
READY_S = 90
SHAPE = MeshShape()


class Up:
    """A running `pagemesh up` and what it has written."""

    def __init__(self, base_port: int, *arguments: str) -> None:
        self.gateway = f"127.0.0.1:{base_port}"
        self.tokenizer, self.scheduler = f"127.0.0.1:{base_port + 10}", f"127.0.0.1:{base_port + 20}"
        command = [*PAGEMESH, "up", "--base-port", str(base_port), "--executor", "scripted", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str, count: int = 1, timeout_s: float = READY_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while sum(bool(re.search(pattern, line)) for line in self.lines) < count:
            assert self.process.poll() is None and time.monotonic() < deadline_s, "\n".join(self.lines)
            time.sleep(0.05)

    def ask(self, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [*PAGEMESH, *arguments]
        return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def up() -> Iterator[Up]:
    running = Up(free_base_port())
    yield running
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()


def free_base_port() -> int:
    """A port from which the whole documented pattern is free."""
    while True:
        (base_port,) = free_ports(1)
        if all(map(is_free, documented_ports(SHAPE, base_port))):
            return base_port


def child_pids(parent: int) -> dict[str, int]:
    """Pids of the services by their --instance-id."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/status") as status, open(f"/proc/{pid}/cmdline") as command:
                is_child = f"\nPPid:\t{parent}\n" in status.read()
                name = re.search(r"--instance-id=([\w-]+)", command.read())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if is_child and name:
            found[name[1]] = pid
    return found


def test_the_mesh_comes_up_answers_heals_and_ends(up):
    up.wait_for("the mesh is ready after")
    pids = child_pids(up.process.pid)
    assert sorted(pids) == ["engine-0", "engine-1", "gateway-0", "scheduler-0", "tokenizer-0"]

    where = ("--gateway", up.gateway, "--tokenizer", up.tokenizer, "--scheduler", up.scheduler)
    deadline_s = time.monotonic() + READY_S
    names: set[str] = set()
    while not names >= {"gateway", "tokenizer", "scheduler", "engine-0", "engine-1"}:
        assert time.monotonic() < deadline_s, names  # the scheduler meets each engine in its own time
        health = up.ask("health", *where, "--json")
        rows = [json.loads(line) for line in health.stdout.splitlines()]
        assert {row["status"] for row in rows} == {"serving"}, rows
        names = {row["name"] for row in rows}

    answer = up.ask("generate", "hi", "-g", up.gateway, "--max-tokens", "5", "--json")
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    assert events[0]["type"] == "started" and events[-1]["type"] == "complete", answer.stderr
    talk = up.ask("chat", "-g", up.gateway, "--max-tokens", "4", "--json", typed="one?\ntwo?\n")
    turns = [json.loads(line) for line in talk.stdout.splitlines() if '"complete"' in line]
    assert [turn["session_version"] for turn in turns] == [1, 2], talk.stderr

    os.kill(pids["engine-1"], signal.SIGKILL)
    up.wait_for(r"^supervisor.*engine-1 was ended by SIGKILL")
    up.wait_for(r"^engine-1 .*READY", count=2)
    assert child_pids(up.process.pid)["engine-1"] != pids["engine-1"]

    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(30) == 0, "\n".join(up.lines)
    assert not [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]


def test_a_port_in_use_is_one_line_and_exit_1(up):
    up.wait_for("the mesh is ready after")
    port = up.gateway.rpartition(":")[2]
    second = up.ask("up", "--base-port", port, "--executor", "scripted", "--drain-s", "1")
    assert second.returncode == 1
    assert re.search(r"supervisor.*exited with 3: .*cannot listen on 127.0.0.1", second.stderr), second.stderr
    assert "Traceback" not in second.stderr


def test_a_model_that_is_not_there_is_one_line_and_exit_1():
    command = [*PAGEMESH, "up", "--model", "/nowhere/at/all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "/nowhere/at/all" in done.stderr and "Traceback" not in done.stderr
