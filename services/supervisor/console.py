"""The one labelled log, and the banner."""

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TextIO

from services.supervisor.plan import ProcessSpec

_COLOURS: Mapping[str, str] = {
    "gateway": "\x1b[36m",
    "scheduler": "\x1b[35m",
    "engine": "\x1b[32m",
    "tokenizer": "\x1b[33m",
    "supervisor": "\x1b[1m",
}
_PLAIN = "\x1b[0m"
_WIDTH = 12


class Console:
    """Writes whole lines, each under the name of its process; called from many threads."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._has_colour = stream.isatty()
        self._lock = threading.Lock()

    def write(self, name: str, line: str) -> None:
        label = f"{name:<{_WIDTH}}"
        if self._has_colour:
            label = f"{_COLOURS.get(name.split('-', maxsplit=1)[0], '')}{label}{_PLAIN}"
        with self._lock:
            print(label, line, sep="| ", file=self._stream, flush=True)


def banner(specs: Sequence[ProcessSpec], seconds: float) -> list[str]:
    """What a person needs to know once all is ready."""
    rows = [
        f"{spec.name:<{_WIDTH}} {spec.address:<22} metrics http://{spec.metrics_address}" for spec in specs
    ]
    gateways = [spec.address for spec in specs if spec.service == "gateway"]
    return [
        f"the mesh is ready after {seconds:.1f} s",
        *rows,
        f"try:  pagemesh generate --gateway {gateways[0]} 'What is the capital of France?'",
    ]
