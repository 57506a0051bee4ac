"""Drivers by scheme."""

from collections.abc import Callable, Mapping

from bench.load.drivers.driver import Driver
from bench.load.drivers.grpc_driver import GrpcDriver
from bench.load.drivers.http_driver import HttpDriver
from bench.load.drivers.process_driver import ProcessDriver
from bench.load.spec import LoadSpec, SpecError

DRIVERS: Mapping[str, Callable[[LoadSpec], Driver]] = {
    "grpc": GrpcDriver,
    "http": HttpDriver,
    "https": HttpDriver,
    "process": ProcessDriver,
}


def driver_for(spec: LoadSpec) -> Driver:
    """Raises SpecError."""
    scheme = spec.target.partition(":")[0]
    if scheme not in DRIVERS:
        raise SpecError(f"the target {spec.target!r} begins with none of {', '.join(DRIVERS)}")
    return DRIVERS[scheme](spec)
