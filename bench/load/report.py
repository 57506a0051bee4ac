"""A report's JSON: environment, then every run with its spec, its figures and, on request, its samples."""

import dataclasses
import enum
import json
from collections.abc import Sequence
from pathlib import Path

from bench.load.environment import Environment
from bench.load.record import RequestRecord
from bench.load.run import Run
from bench.load.spec import LoadSpec

Json = dict[str, object]


def report(runs: Sequence[Run], environment: Environment, *, with_samples: bool = False) -> Json:
    return {
        "environment": dataclasses.asdict(environment),
        "runs": [_run(run, with_samples) for run in runs],
    }


def write_json(file: Path, runs: Sequence[Run], environment: Environment, *, with_samples: bool) -> None:
    file.write_text(json.dumps(report(runs, environment, with_samples=with_samples), default=_plain) + "\n")


def spec_json(spec: LoadSpec) -> Json:
    """Without its secret. `load` says which kind it is."""
    fields = dataclasses.asdict(spec)
    del fields["api_key"]
    kind = {"kind": type(spec.load).__name__}
    return {**fields, "name": spec.name, "load": {**kind, **fields["load"]}}


def _run(run: Run, with_samples: bool) -> Json:
    entry: Json = {"spec": spec_json(run.spec), "summary": dataclasses.asdict(run.summary)}
    if with_samples:
        entry["samples"] = [_sample(record, run.window.begin_s) for record in run.requests]
    return entry


def _sample(record: RequestRecord, begin_s: float) -> Json:
    """Times in seconds after the window's begin."""
    return {
        "intended_s": record.intended_s - begin_s,
        "sent_s": record.sent_s - begin_s,
        "ended_s": record.ended_s - begin_s,
        "is_measured": record.is_measured,
        "turn": record.turn,
        "error": record.error,
        "token_times_s": [float(at_s) - begin_s for at_s in record.token_times_s],
        "token_counts": record.token_counts.tolist(),
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_output_tokens": record.num_output_tokens,
        "server_ttft_s": record.server_ttft_s,
    }


def _plain(value: object) -> object:
    if isinstance(value, Path | enum.Enum):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
