"""Plots of runs as SVG text. Text stays text, so that a page can be searched and stays small."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.load.record import RequestRecord, Seconds
from bench.load.run import Run
from bench.load.spec import ClosedLoop
from bench.load.table import load_text

MAX_POINTS = 1_000
"""Of a line or a cloud; a distribution of more samples is drawn by its quantiles."""
BIN_S = 1.0
LEAST_MS = 0.001
"""Where two events arrived together; a logarithm needs more than 0."""

Samples = Callable[[RequestRecord], Seconds]


def distribution_plot(runs: Sequence[Run], samples_ms: Samples, label: str) -> str:
    """Share of samples at most so long, one line per run."""
    with _figure() as (axes, finish):
        for run in runs:
            parts = [samples_ms(record) for record in run.requests if record.is_measured and not record.error]
            values = np.sort(np.concatenate([np.empty(0), *parts]))
            if len(values):
                shares = np.linspace(0, 1, min(len(values), MAX_POINTS))
                quantiles = np.maximum(np.quantile(values, shares), LEAST_MS)
                axes.step(quantiles, shares, where="post", label=name_of(run))
        axes.set(xlabel=label, ylabel="share of samples", ylim=(0, 1))
        axes.set_xscale("log")
        return finish()


def timeline_plot(runs: Sequence[Run]) -> str:
    """Tokens per second over the run, warm-up and the last requests' tail included."""
    with _figure() as (axes, finish):
        for run in runs:
            times = np.concatenate([np.empty(0), *(record.token_times_s for record in run.requests)])
            counts = np.concatenate([np.empty(0), *(record.token_counts for record in run.requests)])
            if not len(times):
                continue
            since_s = times - run.window.begin_s
            edges = np.arange(np.floor(since_s.min()), np.ceil(since_s.max()) + 2 * BIN_S, BIN_S)
            rate, _ = np.histogram(since_s, edges, weights=counts)
            axes.stairs(rate / BIN_S, edges, label=name_of(run))
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set(xlabel="seconds after the window opened", ylabel="output tokens/s")
        return finish()


def arrivals_plot(runs: Sequence[Run]) -> str:
    """Each measured request's time to first token by its intended send time: a stall is a slope."""
    with _figure() as (axes, finish):
        for run in runs:
            good = [record for record in run.requests if record.is_measured and not record.error]
            shown = good[:: max(1, len(good) // MAX_POINTS)]
            since_s = [record.intended_s - run.window.begin_s for record in shown]
            axes.scatter(since_s, [record.ttft_s * 1000 for record in shown], s=6, label=name_of(run))
        axes.set(xlabel="intended send time, seconds", ylabel="TTFT, ms")
        axes.set_yscale("log")
        return finish()


def scaling_plot(runs: Sequence[Run]) -> str | None:
    """Throughput and ITL over the number of streams; None for fewer than two closed loops."""
    by_streams = {
        run.spec.load.num_streams: run.summary for run in runs if isinstance(run.spec.load, ClosedLoop)
    }
    if len(by_streams) < 2:
        return None
    streams = sorted(by_streams)
    with _figure() as (axes, finish):
        axes.plot(streams, [by_streams[count].output_tokens_per_s for count in streams], "o-")
        axes.set(xlabel="streams", ylabel="output tokens/s", ylim=(0, None))
        right = axes.twinx()
        right.plot(streams, [by_streams[count].itl_ms.mean or 0 for count in streams], "s--", color="grey")
        right.set(ylabel="mean ITL, ms (dashed)", ylim=(0, None))
        return finish()


def name_of(run: Run) -> str:
    return f"{run.spec.name}, {load_text(run.spec)}"


@contextmanager
def _figure() -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Axes, and what gives their SVG."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pagemesh", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)

        def finish() -> str:
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False, fontsize=8)
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            return text.getvalue()[text.getvalue().index("<svg") :]

        yield axes, finish
