"""Runs one LoadSpec, in this process or several, and gives its figures."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.drivers.driver import Driver
from bench.load.drivers.registry import driver_for
from bench.load.loops import Share
from bench.load.meter import Window, merged
from bench.load.part import OnProgress, Part, run_part
from bench.load.processes import run_divided
from bench.load.record import RequestRecord
from bench.load.spec import LoadSpec
from bench.load.summary import Summary, summarize


class EmptyRunError(Exception):
    """No request was measured."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a spec."""

    spec: LoadSpec
    summary: Summary
    requests: tuple[RequestRecord, ...]
    """Warm-up included, in the order in which they were due."""
    window: Window


def measure(spec: LoadSpec, driver: Driver | None = None, on_progress: OnProgress | None = None) -> Run:
    """Raises SpecError, RequestError if there is no server, EmptyRunError."""
    spec.check()
    if spec.num_processes == 1:
        return asyncio.run(measure_here(spec, driver, on_progress))
    assert driver is None, "a driver of one's own cannot be handed to other processes"
    return _run_of(spec, run_divided(spec))


async def measure_here(
    spec: LoadSpec, driver: Driver | None = None, on_progress: OnProgress | None = None
) -> Run:
    """The same on the running event loop, in this process alone."""
    spec.check()
    return _run_of(spec, [await run_part(spec, driver or driver_for(spec), Share(), on_progress)])


def _run_of(spec: LoadSpec, parts: Sequence[Part]) -> Run:
    records = [record for part in parts for record in part.records]
    windows = [part.window for part in parts if part.window is not None]
    if not windows:
        raise EmptyRunError(f"all {len(records)} requests were warm-up: none was measured")
    window = merged(windows)
    ordered = tuple(sorted(records, key=lambda record: record.intended_s))
    return Run(spec, summarize(ordered, window, spec.slo), ordered, window)
