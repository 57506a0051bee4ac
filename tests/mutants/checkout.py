"""A copy of the working tree in which one fault at a time is tried. Knows no catalog and prints nothing."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import Mutant

TIMEOUT_S = 180.0
OPTIONS = ("-x", "-rf", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0")


class Verdict(Enum):
    """What a run of tests came to."""

    GREEN = "green"
    RED = "red"
    """A test failed, as opposed to what could not run at all."""
    BROKEN = "broken"
    """No test failed, yet not all passed: nothing collected, an import error, out of time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of pytest."""

    verdict: Verdict
    failed_test: str
    seconds: float
    output: str


def working_tree(root: Path) -> list[Path]:
    """All files that git would take, as they lie there now, relative to `root`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (root / (path := Path(name))).is_file()]


class Checkout:
    """One copy; used by one thread at a time."""

    def __init__(self, source: Path, files: Iterable[Path], root: Path) -> None:
        self.root = root
        for path in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, root / path)

    def try_mutant(self, mutant: Mutant) -> Outcome:
        """Runs the mutant's tests with its fault in place; the tree is then as before."""
        before = mutant.apply(self.root)
        try:
            return self.run(mutant.tests)
        finally:
            (self.root / mutant.file).write_text(before, encoding="utf-8")

    def run(self, tests: Sequence[str]) -> Outcome:
        """Runs tests in a process of their own, up to the first that fails."""
        command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
        # Without compiled files, of which two within a second and of one length would pass for the same.
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=env,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            return Outcome(
                Verdict.BROKEN, "", time.monotonic() - begin, f"{output}\nno end in {TIMEOUT_S:g} s"
            )
        output = done.stdout + done.stderr
        failed_test = _failed_test(output)
        verdict = Verdict.RED if failed_test else Verdict.BROKEN if done.returncode else Verdict.GREEN
        return Outcome(verdict, failed_test, time.monotonic() - begin, output)


def _failed_test(output: str) -> str:
    """From the summary, which tells failed tests from those that could not run."""
    for line in output.splitlines():
        if line.startswith("FAILED "):
            return line.removeprefix("FAILED ").split(" - ")[0]
    return ""
