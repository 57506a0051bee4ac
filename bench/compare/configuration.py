"""One way to run one system: what it is called, what its weights are, how it is started."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

MODEL_NAME = "smollm2"
"""Served name, everywhere."""
OWN = "pagemesh"


@dataclass(frozen=True, slots=True)
class Started:
    """A system that answers."""

    target: str
    """For the load tool."""
    start_s: float
    """Until it answered; 0 where the load tool starts it itself, once per run."""
    pids: Callable[[], Sequence[int]] = tuple
    """Its processes now."""


Open = Callable[[Path], AbstractContextManager[Started]]
"""Starts the system, with its logs in this folder; leaving ends it. Raises PeerError."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Compared by name; `command` is printed so that anyone can start the same."""

    system: str
    name: str
    weights: str
    """Format of the weights it computes with."""
    command: str
    open: Open

    @property
    def key(self) -> str:
        return f"{self.system}: {self.name}"

    @property
    def is_quantized(self) -> bool:
        return self.weights not in {"bf16", "fp32"}


def cores() -> list[int]:
    """Those that everything here shares."""
    return sorted(os.sched_getaffinity(0))


def row_of(key: str) -> str:
    """pagemesh's configurations are rows of their own; a peer's are ways of its one row."""
    system = key.partition(":")[0]
    return key if system == OWN else system
