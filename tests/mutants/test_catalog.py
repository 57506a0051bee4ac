"""The catalog against the code: cheap enough to say at once when a refactoring takes a fault's place away."""

from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_has_one_place_and_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.count(ROOT) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
