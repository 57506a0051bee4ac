"""What is written at the end: table, JSON and HTML."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.load.cli import app
from bench.load.environment import ROOT, environment
from bench.load.html import write_html
from bench.load.report import report
from bench.load.run import measure_here
from bench.load.spec import Arrivals, ClosedLoop, LoadSpec, OpenLoop
from bench.load.table import NOTHING, figures_of, print_table
from tests.support.sse_server import SseServer
from tests.support.timed_driver import TimedDriver
from tests.support.virtual_loop import run_virtually


def virtual_run(load, num_requests=120, label="<here>", **driver):
    spec = LoadSpec("none", load=load, num_requests=num_requests, num_warmup=5, label=label, api_key="secret")
    return run_virtually(measure_here(spec, TimedDriver(**driver)))


@pytest.fixture(scope="module")
def runs():
    return [
        virtual_run(ClosedLoop(1)),
        virtual_run(ClosedLoop(4), fail_every=10),
        virtual_run(OpenLoop(20.0, Arrivals.GAMMA, 0.5), num_requests=30),
    ]


def test_a_percentile_without_its_samples_is_a_dash(runs):
    few, many = figures_of(runs[2]), figures_of(runs[0])
    name = "TTFT ms: mean / P50 / P95 / P99"
    assert few[name] == f"100.0 / {NOTHING} / {NOTHING} / {NOTHING}"
    assert many[name] == f"100.0 / 100.0 / 100.0 / {NOTHING}"


def test_the_table_names_failures(runs):
    text = io.StringIO()
    print_table(runs, Console(file=text, width=200))
    assert "20/s gamma (shape 0.5)" in text.getvalue()
    assert re.search(r"<here>\s+4 streams: 1\d × told to fail", text.getvalue().replace("\n", " "))


def test_json_has_the_environment_specs_figures_and_samples(runs):
    text = json.dumps(report(runs, environment(), with_samples=True), default=str)
    found = json.loads(text)
    assert "secret" not in text
    assert found["environment"]["num_cores"] >= 1 and found["environment"]["packages"]["grpcio"]
    first, second, third = found["runs"]
    assert first["spec"]["load"] == {"kind": "ClosedLoop", "num_streams": 1}
    assert third["spec"]["load"]["burstiness"] == 0.5 and third["summary"]["ttft_ms"]["p50"] is None
    failed = [sample for sample in second["samples"] if sample["error"] and sample["is_measured"]]
    assert second["summary"]["num_failed"] == len(failed) > 0
    assert len(first["samples"]) == 125 and len(first["samples"][0]["token_times_s"]) == 64
    assert "samples" not in report(runs, environment())["runs"][0]


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.sources = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.sources += [value for name, value in attributes if name in {"src", "href"} and value[:1] != "#"]

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def test_the_page_is_whole_and_needs_nothing_else(runs, tmp_path):
    file = tmp_path / "report.html"
    write_html(file, runs, environment())
    text = file.read_text()
    page = _Page()
    page.feed(text)
    assert page.open == [] and page.sources == [] and "script" not in page.tags
    assert page.tags.count("svg") == 5 and page.tags.count("table") == 3
    assert "&lt;here&gt;, 4 streams" in text and "<here>" not in text
    assert environment().cpu_model in text and len(text) < 1_000_000


def test_one_run_has_no_plot_over_streams(runs, tmp_path):
    write_html(tmp_path / "one.html", runs[:1], environment())
    assert (tmp_path / "one.html").read_text().count("<svg") == 4


def test_the_command_measures_prints_and_writes(tmp_path):
    with SseServer() as server:
        flags = ["--target", server.address, "--streams", "1,2", "--requests", "4", "--warmup", "1"]
        files = ["--max-tokens", "3", "--json", str(tmp_path / "o.json"), "--html", str(tmp_path / "o.html")]
        result = CliRunner().invoke(app, [*flags, *files, "--samples"])
    assert result.exit_code == 0, result.output
    assert "output tokens/s" in result.output
    found = json.loads((tmp_path / "o.json").read_text())
    assert [run["spec"]["seed"] for run in found["runs"]] == [0, 1]
    assert [run["summary"]["num_requests"] for run in found["runs"]] == [4, 4]
    assert (tmp_path / "o.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--target", "ftp://x"], 2, "begins with none of"),
        (["--streams", "two"], 2, "not a list of numbers"),
        (["--extra", "[]"], 2, "not a JSON object"),
        (["--file", "/no/file"], 2, "No such file"),
        (["--target", "http://127.0.0.1:9"], 3, "lists no model"),
    ],
)
def test_what_cannot_run_is_one_line_and_a_code(flags, code, message):
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == code and message in result.stderr and result.stderr.count("\n") == 1


def test_a_run_without_a_good_request_fails():
    with SseServer(status=500) as server:
        result = CliRunner().invoke(app, ["--target", server.address, "--requests", "2", "--warmup", "0"])
    assert result.exit_code == 1 and "2 × HTTP 500" in result.output


def test_the_locust_user_says_what_it_needs():
    code = "import sys; sys.modules['locust'] = None; import bench.locust_user"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 1
        and done.stderr.strip() == "bench/locust_user.py needs Locust: pip install locust"
    )
