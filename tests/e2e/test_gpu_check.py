"""The check that runs on a GPU, at small sizes on this CPU: every section gives rows, and fails loudly."""

import json
import subprocess
import sys
from pathlib import Path

from bench.gpu_check import SECTIONS, is_ok, markdown

ROOT = Path(__file__).parents[2]


def check(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu_check", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_every_section_passes_small_on_a_cpu(tmp_path: Path) -> None:
    ended = check("--in-process", f"--json={tmp_path / 'report.json'}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\nok\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["sections"]) == list(SECTIONS)
    judged = {
        name: [row["ok"] for row in it["rows"] if "ok" in row] for name, it in report["sections"].items()
    }
    assert all(it["rows"] and not it["error"] for it in report["sections"].values())
    for name in ("attention_errors", "kernel_proofs", "draws", "logit_errors", "invariance"):
        assert judged[name].count(True) >= 1, name
    assert "generation 2: no device cpu" in ended.stdout


def test_a_section_that_fails_or_finds_no_time_loses_no_other() -> None:
    ended = check("--only=no_such_section,utilization", "--budget-s=60")
    assert ended.returncode == 1
    assert "StopIteration" in ended.stdout or "RuntimeError" in ended.stdout
    assert "| 16 | 9" in ended.stdout and ended.stdout.endswith("NOT ok\n")
    assert "no time left" in check("--only=utilization", "--budget-s=1").stdout


def test_a_row_that_is_not_ok_fails_the_whole() -> None:
    good = {"rows": [{"a": 1}, {"ok": True}], "error": ""}
    assert is_ok({"one": good})
    assert not is_ok({"one": good, "two": {"rows": [{"ok": False}], "error": ""}})
    assert not is_ok({"one": {"rows": [], "error": "broken"}})
    assert markdown([{"a": 1}, {"b": 2}]) == "| a | b |\n| --- | --- |\n| 1 |  |\n|  | 2 |"
