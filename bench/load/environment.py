"""What a figure depends on: the machine, the system, the versions. Recorded with every report."""

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pagemesh", "grpcio", "protobuf", "aiohttp", "numpy", "torch", "transformers", "tokenizers")

_GPU_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Environment:
    """Of this machine, which is also the server's if it runs here."""

    cpu_model: str
    cpu_flags: tuple[str, ...]
    """Those that decide which kernels run."""
    num_cores: int
    """That this process may use."""
    memory_mib: int
    gpus: tuple[str, ...]
    """Name, memory and driver of each."""
    kernel: str
    python: str
    packages: dict[str, str]
    commit: str
    """Of this checkout, with "+changes" if it is not clean; empty outside of git."""


def environment() -> Environment:
    info = _read(Path("/proc/cpuinfo"))
    flags = set(_field(info, "flags").split())
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read(Path("/proc/meminfo")))
    return Environment(
        cpu_model=_field(info, "model name") or platform.processor() or platform.machine(),
        cpu_flags=tuple(sorted(flag for flag in flags if flag.startswith(("amx", "avx512", "avx2")))),
        num_cores=len(os.sched_getaffinity(0)),
        memory_mib=int(memory[1]) // 1024 if memory else 0,
        gpus=tuple(filter(None, _output("nvidia-smi", *_GPU_QUERY).splitlines())),
        kernel=platform.release(),
        python=sys.version.split()[0],
        packages={name: found for name in PACKAGES if (found := _version(name))},
        commit=commit_of(ROOT),
    )


def commit_of(checkout: Path) -> str:
    """Short hash of what is checked out."""
    head = _git(checkout, "rev-parse", "--short=12", "HEAD")
    return head + ("+changes" if head and _git(checkout, "status", "--porcelain", "-uno") else "")


def _git(checkout: Path, *arguments: str) -> str:
    return _output("git", "-C", str(checkout), *arguments)


def _output(*command: str) -> str:
    """Empty if there is no such command, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _field(info: str, name: str) -> str:
    found = re.search(rf"^{name}\s*: (.*)$", info, re.M)
    return found[1].strip() if found else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
