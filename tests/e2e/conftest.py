"""Prints at the end of the run what the exactness matrix compared."""

from collections.abc import Callable

import pytest

from tests.support.ledger import Ledger

PROPERTY = "exactness"


@pytest.fixture
def ledger(record_property: Callable[[str, object], None]) -> Ledger:
    """Takes (what was compared, tokens, ties and partings)."""
    return lambda what, num_tokens, num_ties: record_property(
        PROPERTY, f"{what:50} {num_tokens:7} tokens {num_ties:4} ties and partings"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for name, line in report.user_properties:
            if name == PROPERTY:
                terminalreporter.write_line(line)
