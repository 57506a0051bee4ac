"""vLLM on the CPU: bf16, over HTTP. Its threads bound to the cores, or left to its own defaults."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.compare.configuration import MODEL_NAME, Configuration, Started, cores
from bench.compare.peer_process import PeerProcess, answers_http
from bench.compare.process_memory import group_pids
from services.supervisor.ports import free_ports

START_S = 900.0
"""It compiles for more than a minute, the first time."""
_ALWAYS = {"HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2"}
_FLAGS = ("--max-model-len=4096", "--dtype=bfloat16", "--max-num-seqs=64")


def vllm_configurations(environment: Path, model: Path) -> list[Configuration]:
    """Four settings; vLLM's CPU build takes no quantized file of this model."""
    bound = {
        "OMP_NUM_THREADS": str(len(cores())),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores())),
    }
    free = {"OMP_NUM_THREADS": str(len(cores())), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    ways: dict[str, tuple[Mapping[str, str], Sequence[str]]] = {
        "threads bound to the cores": (bound, ()),
        "its own defaults": ({}, ()),
        "bound, 4,096 batched tokens": (bound, ("--max-num-batched-tokens=4096",)),
        "a thread per core, not bound": (free, ()),
    }
    return [_configuration(environment, model, name, *way) for name, way in ways.items()]


def _configuration(
    environment: Path, model: Path, name: str, variables: Mapping[str, str], flags: Sequence[str]
) -> Configuration:
    settings = {**_ALWAYS, **variables}
    arguments = ("serve", str(model), f"--served-model-name={MODEL_NAME}", *_FLAGS, *flags)
    shown = shlex.join(["vllm", *(model.name if word == str(model) else word for word in arguments)])
    words = [*(f"{key}={value}" for key, value in settings.items()), shown]

    @contextmanager
    def open_vllm(logs: Path) -> Iterator[Started]:
        (port,) = free_ports(1)
        command = [str(environment / "bin" / "vllm"), *arguments, f"--port={port}"]
        with PeerProcess(f"vllm ({name})", command, settings, logs / "vllm.log") as server:
            url = f"http://127.0.0.1:{port}"
            start_s = server.wait_until(lambda: answers_http(f"{url}/health"), START_S)
            yield Started(url, start_s, lambda: group_pids(server.pid))

    return Configuration("vLLM", name, "bf16", " ".join(words), open_vllm)
