"""What a person reads at the end of a run: one column per run."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from bench.load.distribution import MIN_SAMPLES, MIN_SAMPLES_P99, Distribution
from bench.load.run import Run
from bench.load.spec import Arrivals, ClosedLoop, LoadSpec, OpenLoop

NOTHING = "–"
"""Stands where there are too few samples for a figure."""

PERCENTILES_NEED = f"P50 and P95 need {MIN_SAMPLES} samples, P99 {MIN_SAMPLES_P99:,}"

_Figure = Callable[[Run], str]


def print_table(runs: Sequence[Run], console: Console) -> None:
    table = Table("", *(_title(run.spec) for run in runs), title=PERCENTILES_NEED)
    columns = [figures_of(run) for run in runs]
    for name in _ROWS:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    for run in runs:
        for error, count in run.summary.errors.items():
            console.print(f"{_title(run.spec)}: {count} × {error}", style="red", markup=False)


def figures_of(run: Run) -> dict[str, str]:
    """Every figure by its name."""
    return {name: figure(run) for name, figure in _ROWS.items()}


def load_text(spec: LoadSpec) -> str:
    """The load in a few words."""
    match spec.load:
        case ClosedLoop(num_streams):
            return f"{num_streams} stream{'s' if num_streams > 1 else ''}"
        case OpenLoop(rate_per_s, arrivals, burstiness):
            shape = f" (shape {burstiness:g})" if arrivals is Arrivals.GAMMA else ""
            return f"{rate_per_s:g}/s {arrivals}{shape}"
    return f"replay of {spec.inputs.file}"


def number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _title(spec: LoadSpec) -> str:
    return f"{spec.name}\n{load_text(spec)}"


def _percentiles(of: Callable[[Run], Distribution]) -> _Figure:
    """Mean, then the percentiles."""

    def figure(run: Run) -> str:
        found = of(run)
        if not found.num_samples:
            return NOTHING
        return " / ".join(number(value) for value in (found.mean, found.p50, found.p95, found.p99))

    return figure


def _tokens(run: Run) -> str:
    check = run.summary.token_check
    if not check.num_reported:
        return "server reports none"
    same = "equal" if not check.num_different else f"{check.num_different} requests differ"
    return f"{check.num_reported:,} reported, {check.num_counted:,} counted: {same}"


_ROWS: dict[str, _Figure] = {
    "output tokens/s": lambda run: number(run.summary.output_tokens_per_s),
    "requests/s": lambda run: number(run.summary.requests_per_s, 2),
    "goodput requests/s": lambda run: (
        f"{number(run.summary.goodput_per_s, 2)} ({run.summary.slo_share:.0%} meet)"
    ),
    "TTFT ms: mean / P50 / P95 / P99": _percentiles(lambda run: run.summary.ttft_ms),
    "ITL ms": _percentiles(lambda run: run.summary.itl_ms),
    "per token ms": _percentiles(lambda run: run.summary.ms_per_token),
    "end to end ms": _percentiles(lambda run: run.summary.elapsed_ms),
    "server's TTFT ms": _percentiles(lambda run: run.summary.server_ttft_ms),
    "server's ITL ms": _percentiles(lambda run: run.summary.server_itl_ms),
    "worst stall ms": lambda run: number(run.summary.worst_stall_ms),
    "rhythm (ITL std/mean)": lambda run: number(run.summary.rhythm, 2),
    "requests (failed)": lambda run: f"{run.summary.num_requests:,} ({run.summary.num_failed:,})",
    "window s": lambda run: number(run.summary.window_s),
    "prompt tokens: mean, largest": lambda run: (
        f"{number(run.summary.prompt_tokens.mean)}, {number(run.summary.prompt_tokens.largest, 0)}"
    ),
    "output tokens": _tokens,
    "sent late ms: mean, largest": lambda run: (
        f"{number(run.summary.send_lag_ms.mean, 2)}, {number(run.summary.send_lag_ms.largest)}"
    ),
    "the tool's own CPU": lambda run: (
        f"{run.summary.own_cpu_share:.1%} of a core, {number(run.summary.own_cpu_us_per_token, 0)} µs/token"
    ),
}
