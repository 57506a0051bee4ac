"""Small real processes under the supervisor: they start, are started again, and end in order."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from services.supervisor.child import ROOT
from services.supervisor.plan import ProcessSpec
from services.supervisor.ports import free_ports
from services.supervisor.supervisor import StartError, Supervisor

OBEDIENT = """
import os, signal, sys, time
def end(*_):
    print("BYE", time.monotonic_ns(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("READY fake 127.0.0.1:1", flush=True)
while True:
    time.sleep(60)
"""
STUBBORN = OBEDIENT.replace(
    "signal.signal(signal.SIGTERM, end)", "signal.signal(signal.SIGTERM, lambda *_: None)"
)
BROKEN = "import sys; print('--threads: must be positive', file=sys.stderr); sys.exit(2)"


def spec(name: str, code: str) -> ProcessSpec:
    return ProcessSpec(name, name.split("-", maxsplit=1)[0], "127.0.0.1:1", "", ("-c", code))


@pytest.fixture
def run():
    """Starts a supervisor over (name, code) pairs; ends it after the test."""
    started = []

    def start(*processes):
        lines = []
        supervisor = Supervisor([spec(*process) for process in processes], lambda *line: lines.append(line))
        started.append(supervisor)
        supervisor.start()
        return supervisor, lines

    yield start
    for supervisor in started:
        supervisor.stop(0, lambda: True)


def test_all_are_ready_and_end_in_order(run):
    supervisor, _ = run(("tokenizer-0", OBEDIENT), ("gateway-0", OBEDIENT), ("engine-0", OBEDIENT))
    supervisor.wait_ready(20)
    assert supervisor.stop(10) == []
    goodbyes = {name: int(child.lines[-1].split()[1]) for name, child in supervisor.children.items()}
    assert sorted(goodbyes, key=goodbyes.get) == ["gateway-0", "engine-0", "tokenizer-0"]
    assert {child.exit_code() for child in supervisor.children.values()} == {0}


def test_a_process_that_cannot_start_is_named_with_its_last_line(run):
    supervisor, _ = run(("gateway-0", OBEDIENT), ("engine-0", BROKEN))
    with pytest.raises(StartError, match="engine-0 exited with 2: --threads: must be positive"):
        supervisor.wait_ready(20)


def test_a_process_that_is_never_ready_is_named(run):
    supervisor, _ = run(("engine-0", "import time; time.sleep(60)"))
    with pytest.raises(StartError, match="not ready after 0 s: engine-0"):
        supervisor.wait_ready(0.2)


def test_a_killed_process_is_started_again(run):
    supervisor, lines = run(("engine-0", OBEDIENT))
    supervisor.wait_ready(20)
    child = supervisor.children["engine-0"]
    first_pid, stop = child.pid, threading.Event()
    keeper = threading.Thread(target=supervisor.keep_running, args=(stop,))
    keeper.start()
    try:
        child.send(signal.SIGKILL)
        wait_until(lambda: child.num_starts == 2 and child.ready.is_set())
        assert child.pid != first_pid
        assert any(name == "supervisor" and "was ended by SIGKILL" in line for name, line in lines)
    finally:
        stop.set()
        keeper.join()
        # The keeper's thread was the second process's parent thread; see Child.start.
        wait_until(lambda: not child.is_running())


def test_stragglers_are_killed_even_when_frozen(run):
    supervisor, _ = run(("engine-0", STUBBORN), ("gateway-0", OBEDIENT))
    supervisor.wait_ready(20)
    supervisor.children["engine-0"].send(signal.SIGSTOP)
    assert supervisor.stop(0, is_urgent=lambda: True)[-1] == "engine-0"
    assert not supervisor.children["engine-0"].is_running()


def test_children_die_with_their_parent():
    program = f"""
import sys, time
from services.supervisor.plan import ProcessSpec
from services.supervisor.supervisor import Supervisor
supervisor = Supervisor([ProcessSpec("engine-0", "engine", "", "", ("-c", {OBEDIENT!r}))], lambda *_: None)
supervisor.start()
supervisor.wait_ready(20)
print(supervisor.children["engine-0"].pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(pid))


def test_a_child_runs_as_nice_as_its_spec_says():
    nice = ProcessSpec("gateway-0", "gateway", "127.0.0.1:1", "", ("-c", OBEDIENT), niceness=3)
    supervisor = Supervisor([nice], lambda *_: None)
    supervisor.start()
    supervisor.wait_ready(20)
    pid = supervisor.children["gateway-0"].pid
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    supervisor.stop(0, lambda: True)


def test_free_ports_are_different():
    assert len(set(free_ports(50))) == 50


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)
