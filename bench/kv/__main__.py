"""`python -m bench.kv`, or `make kv`: utilization, cost of the cache, stall and rhythm, with their bars.

Parts are written to --json as they end; --report prints what is there, --only runs some of them.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.flags import names
from bench.generated import write_between
from bench.kv import cache_cost, rhythm, stall, utilization
from bench.progress import say
from services.contract.model_folder import resolve_model

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "kv.md"
GUESS_S = {"utilization": 20, "cache_cost": 160, "stall": 60, "rhythm": 120}

Told = argparse.Namespace
Outcome = tuple[object, list[str]]
"""Figures, and their table."""


def main() -> None:
    told = _parser().parse_args()
    parts: dict[str, Any] = json.loads(told.json.read_text()) if told.json.exists() else {}
    if not told.report:
        say(f"about {sum(GUESS_S[part] for part in told.only) / 60:.0f} min for {', '.join(told.only)}")
        for part in told.only:
            parts[part] = _measured(part, told)
            _save(told.json, parts)
    lines = [line for part in PARTS if part in parts for line in [*parts[part]["lines"], ""]][:-1]
    print("\n".join(lines))
    if told.docs:
        write_between(DOCUMENT, "kv", lines)


def _measured(part: str, told: Told) -> dict[str, Any]:
    begin_s = time.monotonic()
    say(part)
    figures, lines = PARTS[part](told)
    say(f"  {time.monotonic() - begin_s:.0f} s")
    return {"figures": figures, "lines": lines}


def _utilization(told: Told) -> Outcome:
    found = utilization.measure(told.trace)
    return found, utilization.lines(found)


def _cache_cost(told: Told) -> Outcome:
    found = cache_cost.measure_cost(told.executor, told.model, told.pairs, told.requests, say)
    return found, cache_cost.lines(found)


def _stall(told: Told) -> Outcome:
    found = stall.measure_stalls(told.executor, told.model, told.arrivals, say)
    return found, stall.lines(found)


def _rhythm(told: Told) -> Outcome:
    found = rhythm.measure_rhythm(told.executor, told.model, told.duration, say)
    return found, rhythm.lines(found)


PARTS: Mapping[str, Callable[[Told], Outcome]] = {
    "utilization": _utilization,
    "cache_cost": _cache_cost,
    "stall": _stall,
    "rhythm": _rhythm,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.kv", description=__doc__)
    parser.add_argument("--only", type=names(PARTS), default=tuple(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--executor", default="native")
    parser.add_argument("--model", type=_model, default="smollm2")
    parser.add_argument("--trace", type=int, default=utilization.NUM_REQUESTS, help="requests of utilization")
    parser.add_argument("--pairs", type=int, default=12, help="of cache_cost")
    parser.add_argument("--requests", type=int, default=64, help="of each half of a pair of cache_cost")
    parser.add_argument("--arrivals", type=int, default=3, help="of stall's long prompt")
    parser.add_argument("--duration", type=float, default=15.0, help="seconds of rhythm per size of chunks")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "kv.json", help="what was measured")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/kv.md")
    return parser


def _model(name: str) -> Path:
    return resolve_model(name, say).resolve()


def _save(file: Path, parts: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(parts, default=_plain, indent=1) + "\n")


def _plain(value: object) -> object:
    assert dataclasses.is_dataclass(value) and not isinstance(value, type), value
    return dataclasses.asdict(value)


if __name__ == "__main__":
    main()
