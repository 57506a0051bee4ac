"""A run divided among processes: each sends its share of the same streams and arrivals."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier, BrokenBarrierError

from bench.load.drivers.registry import driver_for
from bench.load.loops import Share
from bench.load.part import Part, run_part_together
from bench.load.spec import LoadSpec

_barriers: list[Barrier] = []
"""Of a child process, which can only inherit one."""


def run_divided(spec: LoadSpec) -> list[Part]:
    """Raises what the first process raised that failed of itself."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit gRPC's threads
    barrier = context.Barrier(spec.num_processes)
    with ProcessPoolExecutor(spec.num_processes, context, initializer=_remember, initargs=(barrier,)) as pool:
        shares = [Share(index, spec.num_processes) for index in range(spec.num_processes)]
        futures = [pool.submit(_child, spec, share) for share in shares]
        failures = [future.exception() for future in futures]
    for failure in failures:
        if failure is not None and not isinstance(failure, BrokenBarrierError):
            raise failure
    return [future.result() for future in futures]


def _remember(barrier: Barrier) -> None:
    _barriers.append(barrier)


def _child(spec: LoadSpec, share: Share) -> Part:
    return asyncio.run(run_part_together(spec, driver_for(spec), share, _barriers[0]))
