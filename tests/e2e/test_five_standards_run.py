"""`make five-standards`: the ladder's rows, stock rows with a tiny model, mesh rows with scripted engines."""

from pathlib import Path

from bench.five_standards.conversation import history, questions
from bench.five_standards.ladder import WHOLE, Switches, lines, steps
from bench.five_standards.mesh_rows import Asking, mesh_rows
from bench.five_standards.row import Row
from bench.five_standards.stock import stock_rows
from services.contract.model_folder import resolve_model
from tests.support.tiny_models import make_tiny_model

SHORT = history(num_turns=2, words_per_turn=10)


def _ignore(line: str) -> None:
    pass


def test_each_standard_comes_in_turn_and_is_left_out_once() -> None:
    found = list(steps())
    assert found[0][1] == Switches() and found[5][1] == WHOLE
    left_out = [switches for name, switches in found if name.startswith("all but")]
    assert len(set(left_out)) == 5 and WHOLE not in left_out


def test_the_report_has_both_totals() -> None:
    stock = [
        Row("0. rebuilt per call, sdpa", 2000, 2000, 1500, 1),
        Row("1. loaded once, sdpa", 1000, 1000, 800, 1),
    ]
    mesh = [Row(name, 50, 100, 50, 3) for name, _ in steps()]
    text = "\n".join(lines([*stock, *mesh]))
    assert "From row 0. rebuilt per call, sdpa to all five: first text 2000 → 50 ms (−97.5%)" in text
    assert "From row 1. loaded once, sdpa to all five: first text 1000 → 50 ms (−95.0%)" in text


def test_stock_rows_answer_whole(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, max_position_embeddings=1024)
    rows = stock_rows(model, SHORT, questions(), _ignore)
    names = [
        f"{way}, {kind}" for way in ("0. rebuilt per call", "1. loaded once") for kind in ("eager", "sdpa")
    ]
    assert [row.name for row in rows] == names
    assert all(row.computed_ms < row.whole_ms == row.first_ms for row in rows)


def test_mesh_rows_are_asked_as_their_switches_say(tmp_path: Path) -> None:
    ask = Asking(SHORT, questions(), 2, _ignore)
    ladder = [("none", Switches()), ("all", WHOLE)]
    none, every = mesh_rows(
        ladder, ("scripted", "scripted"), resolve_model("smollm2").resolve(), tmp_path, ask
    )
    assert none.first_ms == none.whole_ms
    assert every.first_ms == every.computed_ms < every.whole_ms
