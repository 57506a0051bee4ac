"""The HTML report of load runs: every figure of the table, and what a table cannot show."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.load.environment import Environment
from bench.load.page import Page, PageTable, Plot, write_page
from bench.load.plots import arrivals_plot, distribution_plot, name_of, scaling_plot, timeline_plot
from bench.load.record import RequestRecord, Seconds
from bench.load.run import Run
from bench.load.table import PERCENTILES_NEED, figures_of

LEAD = f"Latencies are in milliseconds from the intended send time. {PERCENTILES_NEED}; – is too few."


def write_html(file: Path, runs: Sequence[Run], environment: Environment) -> None:
    columns = [figures_of(run) for run in runs]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    tables = [PageTable("Figures", ("", *map(name_of, runs)), rows), _spec_table(runs)]
    write_page(file, Page("Load report", LEAD, tables, load_plots(runs)), environment)


def load_plots(runs: Sequence[Run]) -> list[Plot]:
    scaling = scaling_plot(runs)
    return [
        *([Plot("Throughput and time between tokens by streams", scaling)] if scaling else []),
        Plot("Time to first token", distribution_plot(runs, _ttft_ms, "ms")),
        Plot("Time between token events", distribution_plot(runs, _gaps_ms, "ms")),
        Plot("Throughput over time", timeline_plot(runs)),
        Plot("Time to first token by arrival", arrivals_plot(runs)),
    ]


def _spec_table(runs: Sequence[Run]) -> PageTable:
    rows = [
        (
            name_of(run),
            run.spec.target,
            str(run.spec.num_warmup),
            str(run.spec.max_tokens),
            f"{run.spec.inputs.lengths}, {run.spec.inputs.num_turns} turn(s)",
            f"{run.spec.inputs.shared_prefix_words} words × {run.spec.inputs.num_prefixes}",
            str(run.spec.seed),
        )
        for run in runs
    ]
    headers = ("run", "target", "warm-up calls", "max tokens", "prompts", "shared prefixes", "seed")
    return PageTable("Runs", headers, rows)


def _ttft_ms(record: RequestRecord) -> Seconds:
    return np.array([record.ttft_s * 1000])


def _gaps_ms(record: RequestRecord) -> Seconds:
    return record.gaps_s * 1000
