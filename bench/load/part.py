"""One process's part of a run: its driver opened, its loops run, its answers read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from threading import Barrier

from bench.load.drivers.driver import Driver
from bench.load.loops import Loops, Share
from bench.load.meter import Window
from bench.load.record import RequestRecord
from bench.load.spec import LoadSpec

PROGRESS_S = 0.5

OnProgress = Callable[[int, int], None]
"""Takes conversations begun and, of those, measured; called now and then."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process saw. None if it measured nothing."""

    records: list[RequestRecord]
    window: Window | None


async def run_part(
    spec: LoadSpec, driver: Driver, share: Share, on_progress: OnProgress | None = None
) -> Part:
    """Raises SpecError, RequestError if there is no server."""
    loops = Loops(spec, driver, share)
    try:
        await driver.open()
        await _run(loops, on_progress)
    finally:
        await driver.close()
    return _part(loops)


async def run_part_together(spec: LoadSpec, driver: Driver, share: Share, barrier: Barrier) -> Part:
    """The same, begun when all processes are connected. Raises BrokenBarrierError if another one failed."""
    try:
        loops = await _opened(spec, driver, share, barrier)
        await asyncio.to_thread(barrier.wait)
        await loops.run()
    finally:
        await driver.close()
    return _part(loops)


async def _opened(spec: LoadSpec, driver: Driver, share: Share, barrier: Barrier) -> Loops:
    """Where this process cannot begin, the others must not wait for it."""
    try:
        loops = Loops(spec, driver, share)
        await driver.open()
    except BaseException:
        barrier.abort()
        raise
    return loops


async def _run(loops: Loops, on_progress: OnProgress | None) -> None:
    teller = asyncio.create_task(_tell(loops, on_progress)) if on_progress else None
    try:
        await loops.run()
    finally:
        if teller is not None:
            teller.cancel()


async def _tell(loops: Loops, on_progress: OnProgress) -> None:
    while True:
        on_progress(loops.meter.num_begun, loops.meter.num_measured)
        await asyncio.sleep(PROGRESS_S)


def _part(loops: Loops) -> Part:
    records = loops.records()
    return Part(records, loops.meter.window(max((record.ended_s for record in records), default=0.0)))
