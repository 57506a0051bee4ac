"""Puts one seeded fault at a time into a copy of the tree and wants a test to turn red for each.

`python -m tests.mutants [part of a name ...]`. Exits 1 if a fault goes unseen, if its place in the code is
gone, or if the tests are red without any.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalog import MUTANTS
from tests.mutants.checkout import Checkout, Outcome, Verdict, working_tree
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
NUM_CHECKOUTS = min(os.cpu_count() or 1, 8)
NUM_SHOWN_LINES = 30
WORDS = {Verdict.GREEN: "SURVIVED", Verdict.BROKEN: "BROKEN"}


class Checkouts:
    """A few copies of the tree, each lent to one thread at a time."""

    def __init__(self, folder: Path) -> None:
        files = working_tree(ROOT)
        self._free: SimpleQueue[Checkout] = SimpleQueue()
        for number in range(NUM_CHECKOUTS):
            self._free.put(Checkout(ROOT, files, folder / str(number)))

    @contextmanager
    def borrow(self) -> Iterator[Checkout]:
        checkout = self._free.get()
        try:
            yield checkout
        finally:
            self._free.put(checkout)

    def run(self, tests: Sequence[str]) -> Outcome:
        with self.borrow() as checkout:
            return checkout.run(tests)

    def try_mutant(self, mutant: Mutant) -> Outcome:
        with self.borrow() as checkout:
            return checkout.try_mutant(mutant)


def main(words: Sequence[str]) -> int:
    """Returns the exit status."""
    mutants = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if not mutants:
        return _say(f"no mutant is named like {' '.join(words)}")
    if lost := [problem for mutant in mutants if (problem := _problem(mutant))]:
        return _say("\n".join(lost))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(NUM_CHECKOUTS) as pool:
        checkouts = Checkouts(Path(folder))
        if problem := _first_red(pool, checkouts.run, mutants):
            return _say(f"the tests are not green without any fault:\n{problem}")
        num_missed = _try_all(pool, checkouts.try_mutant, mutants)
    num_caught = len(mutants) - num_missed
    print(
        f"{num_caught} of {len(mutants)} mutants were caught in {time.monotonic() - begin:.0f} s", flush=True
    )
    return 1 if num_missed else 0


def _say(problem: str) -> int:
    print(problem, file=sys.stderr)
    return 1


def _problem(mutant: Mutant) -> str:
    count = mutant.count(ROOT)
    return (
        "" if count == 1 else f"{mutant.name}: its old text stands {count} times in {mutant.file}, not once"
    )


def _first_red(
    pool: ThreadPoolExecutor, run: Callable[[Sequence[str]], Outcome], mutants: Sequence[Mutant]
) -> str:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    shares = [share for start in range(NUM_CHECKOUTS) if (share := tests[start::NUM_CHECKOUTS])]
    for outcome in pool.map(run, shares):
        if outcome.verdict is not Verdict.GREEN:
            return _tail(outcome)
    return ""


def _try_all(
    pool: ThreadPoolExecutor, try_mutant: Callable[[Mutant], Outcome], mutants: Sequence[Mutant]
) -> int:
    """Prints a line per mutant as it ends; returns how many were not caught."""
    width = max(len(mutant.name) for mutant in mutants)
    print(f"{'mutant':{width}}  seconds  caught by", flush=True)
    num_missed = 0
    tries = {pool.submit(try_mutant, mutant): mutant for mutant in mutants}
    for each in as_completed(tries):
        mutant, outcome = tries[each], each.result()
        caught_by = WORDS.get(outcome.verdict, outcome.failed_test)
        print(f"{mutant.name:{width}}  {outcome.seconds:7.1f}  {caught_by}", flush=True)
        if outcome.verdict is Verdict.BROKEN:
            print(_tail(outcome), flush=True)
        num_missed += outcome.verdict is not Verdict.RED
    return num_missed


def _tail(outcome: Outcome) -> str:
    return "\n".join(outcome.output.splitlines()[-NUM_SHOWN_LINES:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
