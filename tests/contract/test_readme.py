"""The README says what is true."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def settings_table():
    spec = importlib.util.spec_from_file_location("settings_table", ROOT / "docs" / "settings_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_settings_are_those_the_services_print(settings_table):
    section = settings_table.section()
    assert settings_table.with_section(README, section) == README, "run `make readme`"
    assert "| `schedulers` |" in section and "| `executor` |" in section


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_exist():
    targets = set(re.findall(r"(?:`|^ *)make ([a-z-]+)", README, re.M))
    known = subprocess.run(["make", "-qp"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert len(targets) >= 3 and [name for name in targets if f"\n{name}:" not in known] == []


def test_the_python_example_is_valid_against_the_client(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    file = tmp_path / "example.py"
    file.write_text(example)
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
