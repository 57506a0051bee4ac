"""Memory of running processes, pages that they share counted once."""

from collections.abc import Iterable
from pathlib import Path


def group_pids(leader: int) -> list[int]:
    """Processes of the leader's group."""
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and _group_of(path) == leader
    ]


def pss_mib(pids: Iterable[int]) -> float:
    """Proportional set size, summed; processes that ended meanwhile count nothing."""
    return sum(_pss_kib(Path("/proc") / str(pid)) for pid in pids) / 1024


def _group_of(process: Path) -> int:
    """0 if it has ended, also if nobody has asked for its end yet."""
    try:
        state, _, group, *_ = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if state == "Z" else int(group)


def _pss_kib(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
