"""OpenVINO GenAI: continuous batching in process, through an adapter. No server, which flatters it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.compare.configuration import Configuration, Started, cores

INSIDE = Path(__file__).parent / "inside"
"""Scripts for OpenVINO's environment, in a folder where no module has the name of one of its own."""
_SCHEDULER = {"max_num_batched_tokens": 512, "cache_size": 1, "dynamic_split_fuse": True}


def openvino_configurations(environment: Path, ggufs: Mapping[str, Path]) -> list[Configuration]:
    """Formats and step sizes, of the files that there are."""
    ways: list[tuple[str, str, dict[str, object]]] = [
        ("Q4_1, 512 tokens a step", "Q4_1", {}),
        ("Q4_1, 2,048 tokens a step", "Q4_1", {"max_num_batched_tokens": 2048}),
        ("Q4_0, 512 tokens a step", "Q4_0", {}),
        ("Q8_0, 512 tokens a step", "Q8_0", {}),
    ]
    return [
        _configuration(environment, ggufs[weights], name, weights, {**_SCHEDULER, **scheduler})
        for name, weights, scheduler in ways
        if weights in ggufs
    ]


def _configuration(
    environment: Path, gguf: Path, name: str, weights: str, scheduler: Mapping[str, object]
) -> Configuration:
    properties = {"INFERENCE_NUM_THREADS": len(cores())}
    words = [str(environment / "bin" / "python"), str(INSIDE / "openvino_adapter.py"), str(gguf)]
    command = shlex.join([*words, json.dumps(scheduler), json.dumps(properties)])

    @contextmanager
    def open_openvino(logs: Path) -> Iterator[Started]:
        """The load tool starts the adapter itself, once per run."""
        yield Started(f"process:{command}", 0.0)

    shown = f"ContinuousBatchingPipeline({gguf.name}, {scheduler}, CPU, {properties})"
    return Configuration("OpenVINO GenAI", name, weights, shown, open_openvino)
