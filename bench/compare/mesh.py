"""pagemesh itself: one engine, scheduler, tokenizer and gateway as real processes, over gRPC."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.compare.configuration import OWN, Configuration, Started, cores
from services.supervisor.plan import flags_of
from tests.support.mesh import Mesh

BF16, INT8, INT4 = "bf16", "int8", "int4"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    BF16: {"executor": "native"},
    INT8: {"executor": "native", "weights": "int8"},
    INT4: {"executor": "native", "weights": "int4"},
}
"""The engine's settings by weights; everything else is as it comes."""
ROWS = (BF16, INT8)
"""What is compared unless more is asked for."""


def mesh_configuration(name: str, model: Path, settings: Mapping[str, object]) -> Configuration:
    """One row of the mesh."""

    @contextmanager
    def open_mesh(logs: Path) -> Iterator[Started]:
        begin_s = time.monotonic()
        whole = {**settings, "num_threads": len(cores())}
        executor = str(whole.pop("executor"))
        with Mesh(engines=1, executor=executor, model=model, settings={"engine": whole}) as mesh:
            pids = [mesh.pid(name) for name in mesh.names]
            yield Started(f"grpc://{mesh.gateways[0]}", time.monotonic() - begin_s, lambda: pids)

    shown = f"pagemesh up --engines 1 (engine: {' '.join(flags_of(settings))})"
    return Configuration(OWN, name, name, shown, open_mesh)
