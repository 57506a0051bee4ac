"""The load tool against a real mesh, in every loop, and two versions of it against each other."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

from bench.load.bootstrap import Verdict
from bench.load.environment import ROOT
from bench.load.run import measure
from bench.load.spec import Arrivals, Cache, ClosedLoop, Inputs, LoadSpec, OpenLoop
from bench.versions.checkout import UnknownVersionError, checked_out
from bench.versions.comparison import compare
from bench.versions.config import BenchmarkConfig
from bench.versions.rounds import measure_versions
from pagemesh.cli import app
from tests.support.mesh import Mesh
from tests.support.metrics import Metrics

NUM_TOKENS = 8


@pytest.fixture(scope="module")
def mesh():
    with Mesh(engines=1, gateways=2, script={"step_ms": 2}) as mesh:
        yield mesh


@pytest.fixture
def spec(mesh):
    target = "grpc://" + ",".join(mesh.gateways)
    defaults = {"num_requests": 12, "num_warmup": 4, "max_tokens": NUM_TOKENS}
    return lambda **fields: LoadSpec(target, **{**defaults, **fields})


def completed(mesh):
    return sum(_requests(mesh.metrics(name)) for name in ("gateway-0", "gateway-1"))


def _requests(metrics: Metrics) -> float:
    return metrics.total("pagemesh_gateway_requests_total")


def test_a_closed_loop_counts_what_the_mesh_counts(mesh, spec):
    before = completed(mesh)
    run = measure(spec(load=ClosedLoop(4)))
    check = run.summary.token_check
    assert (check.num_reported, check.num_counted, check.num_different) == (96, 96, 0)
    assert run.summary.num_failed == 0 and completed(mesh) - before == 16
    assert min(_requests(mesh.metrics(name)) for name in ("gateway-0", "gateway-1")) > 0
    for record in run.requests:
        # The gateway's clock stops when the write has returned, which may be after the client has read.
        assert 0 < record.ttft_s < record.elapsed_s and 0 < record.server_ttft_s < record.elapsed_s
        assert len(record.server_times_s) == len(record.token_times_s)
    # Words, and a mark that makes each prompt its own: nothing can be found in the prefix cache.
    assert run.summary.cached_tokens.largest == 0 and run.summary.prompt_tokens.mean > 20


def test_an_open_loop_in_two_processes_is_the_same_schedule(mesh, spec):
    before = completed(mesh)
    load = OpenLoop(40.0, Arrivals.POISSON)
    run = measure(spec(load=load, num_requests=20, num_processes=2))
    assert (run.summary.num_requests, run.summary.num_failed) == (20, 0) and completed(mesh) - before == 24
    assert run.summary.own_cpu_share > 0


def test_turns_of_a_session_reuse_what_was_said(spec):
    run = measure(spec(load=ClosedLoop(2), num_requests=3, num_warmup=0, inputs=Inputs(num_turns=3)))
    by_turn = [[r for r in run.requests if r.turn == turn] for turn in range(3)]
    assert run.summary.num_failed == 0 and [len(turns) for turns in by_turn] == [3, 3, 3]
    cached = [[record.num_cached_tokens for record in turns] for turns in by_turn]
    assert min(cached[2]) > max(cached[0]) + 16


def test_shared_prefixes_hit_unless_the_cache_is_passed_by(spec):
    inputs = Inputs(shared_prefix_words=100, word_counts=(5,))
    hit = measure(spec(inputs=inputs, seed=1))
    passed_by = measure(spec(inputs=inputs, seed=1, cache=Cache.BYPASS))
    assert hit.summary.cached_tokens.mean > 80 and passed_by.summary.cached_tokens.largest == 0


def test_a_failing_mesh_is_counted_by_reason(spec):
    run = measure(spec(model="no-such-model", num_requests=2, num_warmup=0))
    assert run.summary.errors == {"NOT_FOUND UNKNOWN_MODEL": 2}


def test_the_command_line_reaches_the_load_tool(mesh, tmp_path):
    file = tmp_path / "o.json"
    flags = ["--target", f"grpc://{mesh.gateways[0]}", "--requests", "4", "--warmup", "1"]
    result = CliRunner().invoke(app, ["bench", *flags, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert json.loads(file.read_text())["runs"][0]["summary"]["output_tokens_per_s"] > 0


def test_two_versions_are_measured_each_on_a_mesh_of_its_own():
    """The committed version and the working tree."""
    flags = ("--executor", "scripted")
    config = BenchmarkConfig(
        "HEAD", ".", concurrency=4, duration=1.0, num_rounds=1, max_tokens=4, flags=flags
    )
    rounds = measure_versions(config)
    assert rounds.baseline_commit == rounds.target_commit.removesuffix("+changes")
    rows = {row.metric: row for row in compare(rounds)}
    assert rows["output tokens/s"].baseline > 0 and rows["output tokens/s"].target > 0


def test_a_version_is_checked_out_beside_the_working_tree(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for text in ("one", "two"):
        (tmp_path / "file").write_text(text)
        subprocess.run([*git, "add", "file"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
    (tmp_path / "file").write_text("three")
    with checked_out("HEAD~1", tmp_path) as old, checked_out(".", tmp_path) as now:
        assert ((old / "file").read_text(), (now / "file").read_text()) == ("one", "three")
    assert not old.exists() and (tmp_path / "file").read_text() == "three"
    with pytest.raises(UnknownVersionError), checked_out("v999", tmp_path):
        pass
    with pytest.raises(UnknownVersionError), checked_out("--help", tmp_path):
        pass


def test_verdicts_colour_the_report():
    """The words of a verdict are the page's classes."""
    template = (ROOT / "bench" / "load" / "page.html.jinja").read_text()
    assert all(f"tr.{word}" in template for word in (Verdict.BETTER, Verdict.WORSE))
