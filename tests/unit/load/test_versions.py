"""Two versions: the order of their rounds, what is judged, and the report."""

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from bench.load.bootstrap import Verdict
from bench.load.environment import environment
from bench.load.local_mesh import LocalMesh
from bench.load.run import measure_here
from bench.versions import rounds as rounds_module
from bench.versions.__main__ import app
from bench.versions.comparison import compare
from bench.versions.config import BenchmarkConfig
from bench.versions.report import comparison_json, write_comparison
from bench.versions.rounds import FailedRequestsError, measure_versions
from tests.support.timed_driver import TimedDriver
from tests.support.virtual_loop import run_virtually


@pytest.fixture
def speeds(monkeypatch):
    """Versions are as fast as this says; no process is started."""
    speeds: dict[str, dict[str, float]] = {}
    monkeypatch.setattr(rounds_module, "checked_out", nullcontext)
    monkeypatch.setattr(rounds_module, "commit_of", lambda checkout: f"commit of {checkout}")
    monkeypatch.setattr(rounds_module, "differing_pins", lambda one, other: ["torch"])
    monkeypatch.setattr(
        rounds_module, "local_mesh", lambda checkout, **_: nullcontext(LocalMesh(checkout, ["last line"]))
    )
    monkeypatch.setattr(
        rounds_module,
        "measure",
        lambda spec: run_virtually(measure_here(spec, TimedDriver(**speeds[spec.target]))),
    )
    return speeds


CONFIG = BenchmarkConfig("v1", "v2", concurrency=4, duration=5.0)


def test_rounds_alternate_and_have_the_same_prompts(speeds):
    speeds.update(v1={}, v2={})
    order = []
    tell = lambda number, run: order.append((number, run.spec.label, run.spec.seed))  # noqa: E731
    rounds = measure_versions(CONFIG, tell)
    names = ["v1", "v2", "v2", "v1", "v1", "v2", "v2", "v1", "v1", "v2"]
    assert order == [(i // 2, name, i // 2) for i, name in enumerate(names)]
    assert len(rounds.baseline) == len(rounds.target) == 5 and rounds.target_commit == "commit of v2"


def test_each_metric_is_judged_in_its_own_direction(speeds):
    speeds.update(v1={"first_s": 0.1, "gap_s": 0.01}, v2={"first_s": 0.2, "gap_s": 0.007})
    rows = {row.metric: row for row in compare(measure_versions(CONFIG))}
    assert rows["output tokens/s"].verdict is Verdict.BETTER and rows["output tokens/s"].interval.ratio > 1.05
    assert rows["ITL mean, ms"].verdict is Verdict.BETTER
    assert rows["ITL P95, ms"].interval.ratio == pytest.approx(0.7)
    assert rows["TTFT mean, ms"].verdict is rows["TTFT P95, ms"].verdict is Verdict.WORSE
    assert (rows["TTFT mean, ms"].baseline, rows["TTFT mean, ms"].target) == pytest.approx((100, 200))


def test_equal_versions_are_the_same(speeds):
    speeds.update(v1={}, v2={})
    assert {row.verdict for row in compare(measure_versions(CONFIG))} == {Verdict.SAME}


def test_two_rounds_are_too_few_and_so_are_few_samples(speeds):
    speeds.update(v1={}, v2={"first_s": 5.0})
    config = BenchmarkConfig("v1", "v2", concurrency=1, duration=8.0, num_rounds=2)
    rows = {row.metric: row for row in compare(measure_versions(config))}
    assert rows["TTFT mean, ms"].interval.ratio == pytest.approx(50) and rows["TTFT mean, ms"].verdict is None
    assert rows["TTFT P95, ms"].interval is None and rows["TTFT P95, ms"].baseline is None


def test_the_reports_say_all_of_it(speeds, tmp_path):
    speeds.update(v1={}, v2={"gap_s": 0.02})
    rounds = measure_versions(CONFIG)
    rows = compare(rounds)
    write_comparison(tmp_path / "report.html", rounds, rows, environment())
    text = (tmp_path / "report.html").read_text()
    assert "v1 (commit of v1) → v2 (commit of v2)" in text and '<tr class="worse">' in text
    assert "ran with what is installed: torch." in text and text.count("<svg") == 4
    found = json.loads(json.dumps(comparison_json(rounds, rows, environment())))
    assert found["metrics"][0]["verdict"] == "worse" and found["config"]["duration"] == 5.0


def test_a_version_that_fails_requests_is_not_measured(speeds):
    speeds.update(v1={"fail_every": 9}, v2={})
    with pytest.raises(FailedRequestsError, match=r"v1: .*told to fail.*; last line"):
        measure_versions(CONFIG)


def test_a_version_that_git_does_not_know_is_one_line():
    result = CliRunner().invoke(app, ["no-such-version", "."])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "no-such-version" in result.stderr
