"""`python -m bench.versions BASELINE TARGET`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.load.environment import environment
from bench.load.local_mesh import MeshStartError
from bench.load.run import Run
from bench.versions.checkout import UnknownVersionError
from bench.versions.comparison import compare
from bench.versions.config import BenchmarkConfig
from bench.versions.report import comparison_json, print_comparison, write_comparison
from bench.versions.rounds import FailedRequestsError, measure_versions

app = typer.Typer(add_completion=False)


@app.command()
def versions(
    baseline: Annotated[str, typer.Argument(help="What git can check out, or . for the working tree.")],
    target: Annotated[str, typer.Argument(help="The same.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Streams.")] = 16,
    duration: Annotated[float, typer.Option(help="Seconds measured per version and round.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of both.")] = 5,
    up_flags: Annotated[str, typer.Option(help="Flags of `pagemesh up` for both, space-separated.")] = "",
    html_file: Annotated[Path, typer.Option("--html", help="The report.")] = Path("bench-versions.html"),
    json_file: Annotated[Path | None, typer.Option("--json", help="The same as JSON.")] = None,
) -> None:
    """Measures two versions of this repository alike and judges every metric."""
    config = BenchmarkConfig(
        baseline, target, concurrency, duration, num_rounds=rounds, flags=tuple(up_flags.split())
    )
    console = Console()
    try:
        measured = measure_versions(config, _tell)
    except (UnknownVersionError, MeshStartError, FailedRequestsError) as error:
        print(f"bench.versions: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    rows = compare(measured)
    print_comparison(measured, rows, console)
    write_comparison(html_file, measured, rows, environment())
    console.print(f"report: {html_file}")
    if json_file is not None:
        json_file.write_text(json.dumps(comparison_json(measured, rows, environment())) + "\n")


def _tell(number: int, run: Run) -> None:
    summary = run.summary
    print(
        f"round {number + 1}, {run.spec.name}: {summary.output_tokens_per_s:.1f} tokens/s, "
        f"TTFT {summary.ttft_ms.mean or 0:.0f} ms, {summary.num_requests} requests",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    app()
