"""Ports that are free now, below the range that the system gives to outgoing connections."""

import os
import random
import socket
from collections.abc import Iterator

_LOWEST, _HIGHEST = 12_000, 31_000


def free_ports(count: int) -> list[int]:
    """Different ports on the loopback interface. Another process may take one before it is used."""
    ports = []
    for port in _candidates():
        if is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"fewer than {count} free ports between {_LOWEST} and {_HIGHEST}")


def _candidates() -> Iterator[int]:
    start = random.Random(os.urandom(8)).randrange(_LOWEST, _HIGHEST)
    yield from range(start, _HIGHEST)
    yield from range(_LOWEST, start)


def is_free(port: int) -> bool:
    """On the loopback interface, now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
