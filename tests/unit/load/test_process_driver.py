"""An adapter process, as a library without a server is driven."""

import sys

import pytest

from bench.load.drivers import process_driver
from bench.load.drivers.driver import RequestError
from bench.load.run import measure
from bench.load.spec import ClosedLoop, Inputs, LoadSpec, SpecError

ADAPTER = """
import json, sys
print("loading ...")
print("{'not': JSON}")
print("[1]")
print(json.dumps({"ready": True}), flush=True)
running, lines = {}, sys.stdin
for line in lines:
    request = json.loads(line)
    if request["max_tokens"] == 13:
        print(json.dumps({"end": request["id"], "error": "unlucky"}), flush=True)
        continue
    if request["max_tokens"] == 14:
        sys.exit(3)
    for _ in range(0, request["max_tokens"], 2):
        print(json.dumps({"tokens": [[request["id"], 2]]}), flush=True)
    end = {"end": request["id"], "prompt_tokens": len(request["prompt"].split()), "output_tokens": 6}
    print(json.dumps(end), flush=True)
"""


@pytest.fixture
def spec(tmp_path):
    script = tmp_path / "adapter.py"
    script.write_text(ADAPTER)
    target = f"process:{sys.executable} {script}"
    defaults = {"num_warmup": 0, "num_requests": 4, "max_tokens": 6}
    return lambda **fields: LoadSpec(target, **{**defaults, **fields})


def test_an_adapter_streams_counts(spec):
    run = measure(spec(load=ClosedLoop(2), inputs=Inputs(word_counts=(9,))))
    assert run.summary.num_failed == 0 and run.summary.prompt_tokens.mean == 10
    assert all(list(record.token_counts) == [2, 2, 2] for record in run.requests)
    assert run.summary.token_check.num_different == 0


def test_an_adapters_error_is_one_requests(spec):
    assert measure(spec(max_tokens=13)).summary.errors == {"unlucky": 4}


def test_an_adapter_that_dies_fails_what_runs(spec):
    summary = measure(spec(max_tokens=14, num_requests=1)).summary
    assert summary.errors == {"the adapter ended with 3": 1}


def test_an_adapter_that_died_fails_what_comes_later_at_once(spec):
    summary = measure(spec(max_tokens=14, num_requests=2, timeout_s=600)).summary
    assert summary.errors == {"the adapter ended with 3": 2}


def test_an_adapter_that_is_never_ready_is_said(monkeypatch):
    monkeypatch.setattr(process_driver, "READY_S", 0.2)
    monkeypatch.setattr(process_driver, "LEAVE_S", 0.1)
    command = f"process:{sys.executable} -c 'import time; time.sleep(60)'"
    with pytest.raises(RequestError, match="not ready after 0 s"):
        measure(LoadSpec(command, num_requests=1))


def test_a_command_that_is_not_there_is_said():
    with pytest.raises(RequestError, match="No such file"):
        measure(LoadSpec("process:/no/such/adapter", num_requests=1))


def test_conversations_need_a_server(spec):
    with pytest.raises(SpecError, match="no conversations"):
        measure(spec(inputs=Inputs(num_turns=2)))
