"""Runs one LoadSpec, in this process or several, and gives its figures."""

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from bench.load.drivers.driver import Driver
from bench.load.drivers.registry import driver_for
from bench.load.loops import Loops, Share
from bench.load.meter import Window, merged
from bench.load.record import RequestRecord
from bench.load.spec import LoadSpec
from bench.load.summary import Summary, summarize

PROGRESS_S = 0.5

OnProgress = Callable[[int, int], None]
"""Takes conversations begun and, of those, measured; called a few times a second."""


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
    return _run_of(spec, *_divided(spec))


async def measure_here(
    spec: LoadSpec, driver: Driver | None = None, on_progress: OnProgress | None = None
) -> Run:
    """The same on the running event loop, in this process alone."""
    spec.check()
    records, window = await _part(spec, driver or driver_for(spec), Share(), on_progress)
    return _run_of(spec, records, [window])


Part = tuple[list[RequestRecord], Window | None]


async def _part(
    spec: LoadSpec,
    driver: Driver,
    share: Share,
    on_progress: OnProgress | None,
    barrier: Barrier | None = None,
) -> Part:
    loops = Loops(spec, driver, share)
    await driver.open()
    try:
        if barrier is not None:
            await asyncio.to_thread(barrier.wait)
        teller = asyncio.create_task(_tell(loops, on_progress)) if on_progress else None
        try:
            await loops.run()
        finally:
            if teller is not None:
                teller.cancel()
    finally:
        await driver.close()
    records = loops.records()
    return records, loops.meter.window(max((record.ended_s for record in records), default=0.0))


async def _tell(loops: Loops, on_progress: OnProgress) -> None:
    while True:
        on_progress(loops.meter.num_begun, loops.meter.num_measured)
        await asyncio.sleep(PROGRESS_S)


def _run_of(spec: LoadSpec, records: list[RequestRecord], windows: list[Window | None]) -> Run:
    found = [window for window in windows if window is not None]
    if not found:
        raise EmptyRunError(f"all {len(records)} requests were warm-up: none was measured")
    window = merged(found)
    ordered = tuple(sorted(records, key=lambda record: record.intended_s))
    return Run(spec, summarize(ordered, window, spec.slo), ordered, window)


def _divided(spec: LoadSpec) -> tuple[list[RequestRecord], list[Window | None]]:
    """Processes that are started anew: a fork would inherit gRPC's threads."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(spec.num_processes)
    with ProcessPoolExecutor(spec.num_processes, context, initializer=_remember, initargs=(barrier,)) as pool:
        shares = [Share(index, spec.num_processes) for index in range(spec.num_processes)]
        parts = list(pool.map(_child, [spec] * len(shares), shares))
    return [record for records, _ in parts for record in records], [window for _, window in parts]


_barriers: list[Barrier] = []
"""Of a child process: a barrier can only be inherited."""


def _remember(barrier: Barrier) -> None:
    _barriers.append(barrier)


def _child(spec: LoadSpec, share: Share) -> Part:
    return asyncio.run(_part(spec, driver_for(spec), share, None, _barriers[0]))
