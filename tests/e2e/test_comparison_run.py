"""`make compare` with scripted meshes in all roles: measured in rounds, kept, gone on with, reported."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.compare.configuration import Configuration, Started
from bench.compare.mesh import mesh_configuration
from bench.compare.openvino import INSIDE
from bench.compare.report import report
from bench.compare.rounds import Plan, Rounds, choose, choosing_tasks, main_tasks
from bench.compare.store import Store
from bench.load.run import measure
from bench.load.spec import ClosedLoop, Inputs, LoadSpec
from services.contract.model_folder import resolve_model

PLAN = Plan(streams=(1, 2), num_rounds=2, duration_s=0.3, choosing_s=0.2, inputs=Inputs(word_counts=(5,)))


def test_a_comparison_is_chosen_measured_kept_and_gone_on_with(tmp_path: Path) -> None:
    own = mesh_configuration("bf16", resolve_model("smollm2").resolve(), {"executor": "scripted"})
    with own.open(tmp_path) as started:
        assert started.start_s > 0 and len(started.pids()) == 4
        opened: list[str] = []
        mine = replace(own, open=_opening(started, opened, "mine"))
        peers = [replace(mine, system="vLLM", name=n, open=_opening(started, opened, n)) for n in ("a", "b")]
        configurations, path = [mine, *peers], tmp_path / "compare.json"

        store = Store(path, {"rounds": 2})
        rounds = Rounds(PLAN, store, tmp_path, lambda line: None)
        rounds.run(choosing_tasks(configurations, PLAN))
        assert opened == ["a", "b"]
        chosen = choose(configurations, store.measurements, PLAN)
        rounds.run(main_tasks(chosen, PLAN)[:1])
        done = len(opened)

        again = Store(path, {"rounds": 2})
        Rounds(PLAN, again, tmp_path, lambda line: None).run(main_tasks(chosen, PLAN))
        assert len(opened) == done + len(main_tasks(chosen, PLAN)) - 1

    rows = again.measurements
    assert all(row.tokens_per_s > 0 and row.ttft_ms and not row.num_failed for row in rows)
    assert all(row.memory_mib > 50 for row in rows)
    text = "\n".join(report(rows, configurations, {}, ["openvino"]))
    assert "| pagemesh: bf16 / vLLM |" in text
    assert "bf16 ≥ 1 × the best peer, 1 stream | " in text


def test_the_openvino_adapter_speaks_the_load_tools_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino_genai.py").write_text(FAKE_OPENVINO)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    adapter = INSIDE / "openvino_adapter.py"
    target = f"process:{sys.executable} {adapter} model.gguf '{{\"cache_size\": 1}}' '{{\"THREADS\": 2}}'"
    run = measure(LoadSpec(target=target, load=ClosedLoop(3), num_requests=20, num_warmup=3, max_tokens=8))
    assert run.summary.num_failed == 0
    assert run.summary.token_check.num_reported == 20 * 8
    assert run.summary.token_check.num_different == 0


def _opening(started: Started, opened: list[str], name: str) -> "type[Configuration.open]":
    """A system that already runs."""

    @contextmanager
    def open_again(logs: Path) -> Iterator[Started]:
        opened.append(name)
        yield started

    return open_again


FAKE_OPENVINO = """
from types import SimpleNamespace

class SchedulerConfig: pass
class GenerationConfig: pass
class GenerationStatus: RUNNING, FINISHED = "running", "finished"

class Handle:
    def __init__(self, limit): self.limit, self.unread, self.made = limit, 0, 0
    def step(self):
        if self.made < self.limit: self.made += 1; self.unread += 1
    def can_read(self): return self.unread > 0
    def read(self):
        unread, self.unread = self.unread, 0
        return {0: SimpleNamespace(generated_ids=[5] * unread)}
    def get_status(self): return "finished" if self.made == self.limit else "running"

class ContinuousBatchingPipeline:
    def __init__(self, model, config, device, properties):
        assert (model, config.cache_size, device, properties) == ("model.gguf", 1, "CPU", {"THREADS": 2})
        self.handles = []
    def add_request(self, number, prompt, options):
        assert options.ignore_eos and not options.do_sample and not options.apply_chat_template
        self.handles.append(Handle(options.max_new_tokens))
        return self.handles[-1]
    def step(self):
        for handle in self.handles: handle.step()
"""
