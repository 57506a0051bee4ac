"""llama.cpp's server over HTTP, in the formats of its own files."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.compare.configuration import MODEL_NAME, Configuration, Started, cores
from bench.compare.peer_process import PeerProcess, answers_http
from bench.compare.process_memory import group_pids
from services.supervisor.ports import free_ports

START_S = 120.0
_FLAGS = ("-np", "32", "-c", "65536", "-cb", "--no-webui")


def llamacpp_configurations(binaries: Path, ggufs: Mapping[str, Path]) -> list[Configuration]:
    """Every format that there is; the 4-bit ones also with a smaller batch."""
    threads = ("-t", str(len(cores())))
    ways: list[tuple[str, str, Sequence[str]]] = [
        (weights, weights, threads) for weights in ("Q4_0", "Q4_1", "Q8_0", "BF16")
    ]
    ways.append(("Q4_0, batches of 512", "Q4_0", (*threads, "-b", "512")))
    return [
        _configuration(binaries, ggufs[weights], name, weights, flags)
        for name, weights, flags in ways
        if weights in ggufs
    ]


def library_path(binaries: Path) -> dict[str, str]:
    """Its libraries lie beside the binaries."""
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(binaries), os.environ.get("LD_LIBRARY_PATH", "")])}


def _configuration(
    binaries: Path, gguf: Path, name: str, weights: str, flags: Sequence[str]
) -> Configuration:
    arguments = ("-m", str(gguf), "-a", MODEL_NAME, *_FLAGS, *flags)

    @contextmanager
    def open_llamacpp(logs: Path) -> Iterator[Started]:
        (port,) = free_ports(1)
        command = [str(binaries / "llama-server"), *arguments, "--host", "127.0.0.1", "--port", str(port)]
        log = logs / "llamacpp.log"
        with PeerProcess(f"llama.cpp ({name})", command, library_path(binaries), log) as server:
            url = f"http://127.0.0.1:{port}"
            start_s = server.wait_until(lambda: answers_http(f"{url}/health"), START_S)
            yield Started(url, start_s, lambda: group_pids(server.pid))

    shown = "bf16" if weights == "BF16" else weights
    command = shlex.join(["llama-server", *(gguf.name if word == str(gguf) else word for word in arguments)])
    return Configuration("llama.cpp", name, shown, command, open_llamacpp)
