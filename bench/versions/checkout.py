"""A version's files in a folder of their own, for as long as they are needed."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load.environment import ROOT
from bench.versions.config import WORKING_TREE


class UnknownVersionError(Exception):
    """Git cannot check it out. One line."""


@contextmanager
def checked_out(version: str, repository: Path = ROOT) -> Iterator[Path]:
    """A worktree of the repository at that version. Raises UnknownVersionError."""
    if version == WORKING_TREE:
        yield repository
        return
    with tempfile.TemporaryDirectory(prefix="version-") as folder:
        tree = Path(folder, "tree")
        commit = commit_named(version, repository)
        _git(repository, "worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def commit_named(version: str, repository: Path = ROOT) -> str:
    """Its full hash. Raises UnknownVersionError."""
    return _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{version}^{{commit}}")


def differing_pins(one: Path, other: Path) -> list[str]:
    """Packages that two checkouts pin differently; both are measured with what is installed."""
    lines = [set((checkout / "constraints.txt").read_text().split()) for checkout in (one, other)]
    return sorted({line.partition("==")[0] for line in lines[0] ^ lines[1]})


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        cause = (done.stderr.strip() or "no such version").splitlines()[-1]
        raise UnknownVersionError(f"git {' '.join(arguments)}: {cause}")
    return done.stdout.strip()
