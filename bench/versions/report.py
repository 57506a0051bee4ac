"""The comparison as a table for a terminal, as JSON and as an HTML page."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.load.bootstrap import LEAST_CHANGE, MIN_ROUNDS
from bench.load.environment import Environment
from bench.load.html import load_plots
from bench.load.page import Page, PageTable, write_page
from bench.load.table import NOTHING, number
from bench.versions.comparison import Row
from bench.versions.rounds import Rounds

HEADERS = ("metric", "baseline", "target", "change", "95% interval", "verdict")
_STYLES = {"better": "green", "worse": "red"}


def print_comparison(rounds: Rounds, rows: Sequence[Row], console: Console) -> None:
    table = Table(*HEADERS, title=f"{_version(rounds, 0)} → {_version(rounds, 1)}")
    for row in rows:
        table.add_row(*_cells(row), style=_STYLES.get(row.verdict or "", ""))
    console.print(table)
    if rounds.differing_pins:
        console.print(_pins_note(rounds), markup=False)


def comparison_json(rounds: Rounds, rows: Sequence[Row], environment: Environment) -> dict[str, object]:
    return {
        "config": dataclasses.asdict(rounds.config),
        "commits": [rounds.baseline_commit, rounds.target_commit],
        "differing_pins": rounds.differing_pins,
        "environment": dataclasses.asdict(environment),
        "metrics": [dataclasses.asdict(row) for row in rows],
    }


def write_comparison(file: Path, rounds: Rounds, rows: Sequence[Row], environment: Environment) -> None:
    classes = [row.verdict or "" for row in rows]
    metrics = PageTable("Metrics", HEADERS, [_cells(row) for row in rows], classes)
    by_round = PageTable(
        "Rounds",
        ("round", "baseline tokens/s", "target tokens/s", "baseline TTFT ms", "target TTFT ms"),
        [
            (
                str(index + 1),
                *(number(run.summary.output_tokens_per_s) for run in pair),
                *(number(run.summary.ttft_ms.mean) for run in pair),
            )
            for index, pair in enumerate(zip(rounds.baseline, rounds.target, strict=True))
        ],
    )
    plots = load_plots([rounds.baseline[-1], rounds.target[-1]])
    title = f"{_version(rounds, 0)} → {_version(rounds, 1)}"
    write_page(file, Page(title, _lead(rounds), [metrics, by_round], plots), environment)


def _lead(rounds: Rounds) -> str:
    config = rounds.config
    return (
        f"{config.concurrency} streams in a closed loop, {config.duration:g} s each in {config.num_rounds} "
        f"rounds in alternating order, every mesh started anew, {config.max_tokens} output tokens. Intervals "
        "are bootstrap intervals over whole rounds; better or worse needs one without 0% and a change "
        f"of at least {LEAST_CHANGE:.0%}. The plots show the last round. {_pins_note(rounds)}"
    )


def _pins_note(rounds: Rounds) -> str:
    if not rounds.differing_pins:
        return ""
    pins = ", ".join(rounds.differing_pins)
    return f"The versions pin these differently and ran with what is installed: {pins}."


def _version(rounds: Rounds, side: int) -> str:
    names = (rounds.config.baseline_version, rounds.config.target_version)
    return f"{names[side]} ({(rounds.baseline_commit, rounds.target_commit)[side]})"


def _cells(row: Row) -> tuple[str, ...]:
    if row.interval is None:
        return (row.metric, NOTHING, NOTHING, NOTHING, NOTHING, "too few samples")
    interval = row.interval
    return (
        row.metric,
        number(row.baseline),
        number(row.target),
        f"{interval.ratio - 1:+.1%}",
        f"{interval.low - 1:+.1%} … {interval.high - 1:+.1%}",
        row.verdict or f"needs {MIN_ROUNDS} rounds",
    )
