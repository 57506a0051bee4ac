"""docs/cases.md names tests that exist, and every case that a test names."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
ROW = re.compile(r"^\| (?P<case>[A-Z]\d\d) \| (?P<meaning>[^|]+) \| (?P<tests>[^|]+) \|$", re.M)
ROWS = list(ROW.finditer((ROOT / "docs" / "cases.md").read_text()))

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def known_tests(file: Path) -> dict[str, str]:
    """Names of a file's tests with the first lines of their docstrings."""
    if not file.is_file():
        return {}
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for node in ast.parse(file.read_text()).body
        if isinstance(node, Function) and node.name.startswith("test_")
    }


def test_every_named_test_exists() -> None:
    named = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row["tests"])]
    assert len(named) > 50
    places = [(name, name.partition("::")) for name in named]
    missing = [name for name, (file, _, test) in places if test not in known_tests(TESTS / file)]
    assert not missing


def test_every_case_has_one_row_with_a_test() -> None:
    cases = [row["case"] for row in ROWS]
    assert cases == sorted(set(cases))
    assert not [row["case"] for row in ROWS if "::" not in row["tests"]]


def test_every_case_that_a_test_names_has_a_row() -> None:
    lines = [line for file in TESTS.glob("e2e/cases/test_*.py") for line in known_tests(file).values()]
    named = {case for line in lines for case in re.findall(r"\b[A-G]\d\d\b", line)}
    assert named and not named - {row["case"] for row in ROWS}
