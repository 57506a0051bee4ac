"""`python -m bench.five_standards`, or `make five-standards`: the ladder from the naive way, in 5 minutes."""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

from bench.five_standards.conversation import history, questions
from bench.five_standards.ladder import lines, steps
from bench.five_standards.mesh_rows import Asking, mesh_rows
from bench.five_standards.row import Row
from bench.five_standards.stock import stock_rows
from bench.generated import write_between
from bench.progress import say
from services.contract.model_folder import resolve_model

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "five-standards.md"
GUESS_MINUTES = 4


def main() -> None:
    told = _parser().parse_args()
    if not told.report:
        say(f"about {GUESS_MINUTES} min")
        begin_s = time.monotonic()
        _save(told.json, _measure(told))
        say(f"{time.monotonic() - begin_s:.0f} s in all")
    rows = [Row(**row) for row in json.loads(told.json.read_text())]
    print("\n".join(lines(rows)))
    if told.docs:
        write_between(DOCUMENT, "five-standards", lines(rows))


def _measure(told: argparse.Namespace) -> list[Row]:
    model = resolve_model(told.model, say).resolve()
    talk, asked = history(), questions()
    stock = stock_rows(model, talk, asked, say)
    with tempfile.TemporaryDirectory() as scratch:
        ask = Asking(talk, asked, told.calls, say)
        executors = (told.slow_executor, told.executor)
        return [*stock, *mesh_rows(list(steps()), executors, model, Path(scratch), ask)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.five_standards", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--executor", default="native", help="with standard A")
    parser.add_argument("--slow-executor", default="torch", help="without it")
    parser.add_argument("--calls", type=int, default=3, help="counted questions of each of the mesh's rows")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "five_standards.json")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/five-standards.md")
    return parser


def _save(file: Path, rows: list[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
