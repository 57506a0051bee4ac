"""Sizes the KV pool and refuses one that the machine cannot hold, before anything is allocated."""

import resource
from collections.abc import Iterator
from pathlib import Path

MIB = 2**20
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


class TooLittleMemoryError(Exception):
    """One line: needed, available, remedy."""


def available_bytes() -> int:
    """Memory that this process may still take, by the machine's, the container's and its own limits."""
    return max(0, min(_limits()))


def check_memory(what: str, needed: int, available: int) -> None:
    """Raises TooLittleMemoryError."""
    if needed > available:
        raise TooLittleMemoryError(
            f"{what} needs {needed // MIB} MiB; {available // MIB} MiB are available; "
            "give the process more memory, or it a smaller model or pool (--kv-memory-mib, --num-blocks)"
        )


def pool_size(
    num_blocks: int, kv_memory_mib: int, bytes_per_block: int, max_sequences: int, blocks_per_sequence: int
) -> int:
    """Blocks of the pool, the null block among them: as told, else what fits and can be used."""
    if num_blocks:
        return num_blocks
    affordable = kv_memory_mib * MIB // bytes_per_block
    if affordable < 3:
        raise TooLittleMemoryError(
            f"a KV block takes {bytes_per_block} bytes; --kv-memory-mib {kv_memory_mib} holds {affordable} "
            "and at least 3 are needed; raise it"
        )
    return min(affordable, 1 + max_sequences * blocks_per_sequence)


def _limits() -> Iterator[int]:
    yield _machine_bytes()
    for limit_path, usage_path in _CGROUPS:
        limit, usage = _number(limit_path), _number(usage_path)
        if limit is not None and usage is not None:
            yield limit - usage
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft - _own_address_space()


def _machine_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise TooLittleMemoryError("/proc/meminfo names no MemAvailable; run on Linux 3.14 or later")


def _own_address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _number(path: Path) -> int | None:
    """None where the file is missing or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
