"""`pagemesh bench`: flags to LoadSpecs, runs with a progress bar, and what is written at the end."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.load.drivers.driver import RequestError
from bench.load.environment import environment
from bench.load.part import OnProgress
from bench.load.report import write_json
from bench.load.run import EmptyRunError, Run, measure
from bench.load.spec import (
    WORD_COUNTS,
    Arrivals,
    Cache,
    ClosedLoop,
    Inputs,
    Lengths,
    Load,
    LoadSpec,
    OpenLoop,
    Replay,
    Slo,
    SpecError,
)
from bench.load.table import load_text, print_table

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
DEFAULT_REQUESTS = 200

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    target: Annotated[
        str, typer.Option(help="grpc://host:port[,host:port], http://host:port, or process:COMMAND.")
    ] = "grpc://127.0.0.1:7600",
    streams: Annotated[
        str, typer.Option(help="Closed loop: streams; several numbers are several runs.")
    ] = "1",
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Gaps of the open loop.")] = Arrivals.POISSON,
    burstiness: Annotated[float, typer.Option(help="Shape of gamma gaps; below 1 comes in bursts.")] = 1.0,
    trace: Annotated[Path | None, typer.Option(help="Recorded file to replay at its at_s.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help=f"Measured conversations; {DEFAULT_REQUESTS} by default.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds that are measured, instead.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Conversations in front that do not count.")] = 50,
    words: Annotated[str, typer.Option(help="Prompts' words, drawn evenly.")] = ",".join(
        map(str, WORD_COUNTS)
    ),
    bins: Annotated[
        bool, typer.Option("--bins", help="Prompts of 1-64, 65-256, 257-1024 tokens at 60/30/10%.")
    ] = False,
    file: Annotated[Path | None, typer.Option(help="Recorded prompts, a JSON object per line.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each conversation.")] = 1,
    shared_prefix: Annotated[int, typer.Option(min=0, help="Words in front that prompts share.")] = 0,
    prefixes: Annotated[int, typer.Option(min=1, help="How many different such prefixes.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens.")] = 64,
    ignore_eos: Annotated[bool, typer.Option(help="Go on to max-tokens.")] = True,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    chat: Annotated[bool, typer.Option("--chat", help="Through the chat template.")] = False,
    model: Annotated[str, typer.Option(help="Served name.")] = "",
    api_key: Annotated[str, typer.Option(envvar="PAGEMESH_API_KEY", help="Better in the environment.")] = "",
    cache: Annotated[Cache, typer.Option(help="Prefix cache of a gateway.")] = Cache.DEFAULT,
    extra: Annotated[str, typer.Option(help="JSON object: further fields of HTTP requests.")] = "{}",
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: first token within.")] = None,
    slo_itl_ms: Annotated[float | None, typer.Option(help="Goodput: mean gap at most.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and arrivals; raised by one per run.")] = 0,
    timeout_s: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    processes: Annotated[int, typer.Option(min=1, help="Of the tool.")] = 1,
    label: Annotated[str, typer.Option(help="Name in reports.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report with plots here.")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="Every request's times in the JSON.")] = False,
) -> None:
    """Measures a server under load. Definitions: docs/benchmark.md."""
    console = Console()
    try:
        inputs = Inputs(
            _lengths(bins, trace or file), _numbers(words), trace or file, turns, shared_prefix, prefixes
        )
        specs = [
            LoadSpec(
                target=target,
                load=load,
                inputs=inputs,
                num_requests=requests or (DEFAULT_REQUESTS if duration is None and trace is None else None),
                duration_s=duration,
                num_warmup=warmup,
                max_tokens=max_tokens,
                ignore_eos=ignore_eos,
                temperature=temperature,
                is_chat=chat,
                model=model,
                api_key=api_key,
                cache=cache,
                extra=_object(extra),
                slo=Slo(slo_ttft_ms, slo_itl_ms),
                seed=seed + index,
                timeout_s=timeout_s,
                num_processes=processes,
                label=label,
            )
            for index, load in enumerate(_loads(streams, rate, arrivals, burstiness, trace))
        ]
        runs = [_measure(spec) for spec in specs]
    except SpecError as error:
        raise typer.Exit(_complain(str(error), EXIT_USAGE)) from None
    except RequestError as error:
        raise typer.Exit(_complain(f"{target}: {error}", EXIT_UNAVAILABLE)) from None
    except EmptyRunError as error:
        raise typer.Exit(_complain(str(error), EXIT_FAILED)) from None
    print_table(runs, console)
    if json_file is not None:
        write_json(json_file, runs, environment(), with_samples=samples)
    if html_file is not None:
        from bench.load.html import write_html  # noqa: PLC0415  its plots take a second to load

        write_html(html_file, runs, environment())
    if any(run.summary.num_failed == run.summary.num_requests for run in runs):
        raise typer.Exit(_complain("no measured request ended well", EXIT_FAILED))


def _measure(spec: LoadSpec) -> Run:
    with _progress(spec) as on_progress:
        return measure(spec, on_progress=on_progress)


@contextmanager
def _progress(spec: LoadSpec) -> Iterator[OnProgress]:
    """On a terminal's standard error, and seldom: drawing takes time from the server."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=2, transient=True
    ) as progress:
        title = f"{spec.name}, {load_text(spec)}"
        total = None if spec.num_requests is None else spec.num_requests + spec.num_warmup
        task = progress.add_task(f"{title}: warm-up", total=total)

        def show(num_begun: int, num_measured: int) -> None:
            stage = "measuring" if num_measured else "warm-up"
            progress.update(task, completed=num_begun, description=f"{title}: {stage}")

        yield show


def _loads(
    streams: str, rate: float | None, arrivals: Arrivals, burstiness: float, trace: Path | None
) -> list[Load]:
    if trace is not None:
        return [Replay()]
    if rate is not None:
        return [OpenLoop(rate, arrivals, burstiness)]
    return [ClosedLoop(count) for count in _numbers(streams)]


def _lengths(bins: bool, file: Path | None) -> Lengths:
    if file is not None:
        return Lengths.FILE
    return Lengths.BINS if bins else Lengths.WORDS


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"{text!r} is not a list of numbers") from None


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError(f"--extra is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SpecError("--extra is not a JSON object")
    return found


def _complain(message: str, code: int) -> int:
    print(f"pagemesh bench: {message}", file=sys.stderr)
    return code
