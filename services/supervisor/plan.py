"""Which processes make a mesh, where each listens and with which flags. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

START_ORDER = ("tokenizer", "engine", "scheduler", "gateway")
"""Slowest to get ready first."""

DRAIN_ORDER = ("gateway", "scheduler", "engine", "tokenizer")
"""Callers first: what a running request still needs goes last."""

BASE_PORT = 7600
OFFSETS: Mapping[str, int] = {"gateway": 0, "tokenizer": 10, "scheduler": 20, "engine": 30}
METRICS_OFFSET = 100
HOST = "127.0.0.1"

Overrides = Mapping[str, Mapping[str, object]]
"""Settings by service name or process name ("engine-1"); "*" is every process."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to run."""

    name: str
    """engine-0, engine-1, ..."""
    service: str
    address: str
    metrics_address: str
    arguments: tuple[str, ...]
    """For the Python interpreter."""
    niceness: int = 0
    """How far it steps back for others that want the same core."""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """How many of each. There is one tokenizer unless more are asked for."""

    engines: int = 2
    gateways: int = 1
    schedulers: int = 1
    tokenizers: int = 1
    overrides: Overrides = field(default_factory=dict)
    niceness: int = 10
    """Of all but the engines: one of them that takes a core for a moment stops every compute thread at its
    next barrier, and a step takes twice as long. On Kubernetes requests divide the cores instead."""

    def count(self, service: str) -> int:
        counts = {"engine": self.engines, "gateway": self.gateways, "scheduler": self.schedulers}
        return counts.get(service, self.tokenizers)


def documented_ports(shape: MeshShape, base_port: int = BASE_PORT) -> list[int]:
    """A port for gRPC and one for metrics per process, in the order of `plan`; gateways from base_port on."""
    ports = []
    for service in START_ORDER:
        for index in range(shape.count(service)):
            port = base_port + OFFSETS[service] + index
            ports += [port, port + METRICS_OFFSET]
    return ports


def plan(shape: MeshShape, ports: Sequence[int]) -> list[ProcessSpec]:
    """All processes in the order of their start. Takes two ports for each."""
    left = iter(ports)
    places = [
        _Place(service, f"{service}-{index}", f"{HOST}:{next(left)}", f"{HOST}:{next(left)}")
        for service in START_ORDER
        for index in range(shape.count(service))
    ]
    links = {
        "scheduler": {"engines": _addresses(places, "engine")},
        "gateway": {
            "tokenizers": _addresses(places, "tokenizer"),
            "schedulers": _addresses(places, "scheduler"),
        },
    }
    return [_spec(place, links.get(place.service, {}), shape) for place in places]


@dataclass(frozen=True, slots=True)
class _Place:
    service: str
    name: str
    address: str
    metrics_address: str


def _spec(place: _Place, links: Mapping[str, object], shape: MeshShape) -> ProcessSpec:
    overrides = shape.overrides
    settings = {
        "listen": place.address,
        "metrics_listen": place.metrics_address,
        "instance_id": place.name,
        **links,
        **overrides.get("*", {}),
        **overrides.get(place.service, {}),
        **overrides.get(place.name, {}),
    }
    arguments = ("-m", f"services.{place.service}", *flags_of(settings))
    niceness = 0 if place.service == "engine" else shape.niceness
    return ProcessSpec(place.name, place.service, place.address, place.metrics_address, arguments, niceness)


def flags_of(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Settings as command-line flags."""
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            flags.append(f"--{flag}={','.join(map(str, value))}")
        elif value is not None:
            flags.append(f"--{flag}={value}")
    return tuple(flags)


def _addresses(places: Sequence[_Place], service: str) -> str:
    return ",".join(place.address for place in places if place.service == service)
