"""Keeps the exactness ledger and prints it at the end of the run."""

import pytest

from tests.support.ledger import Ledger

LEDGER = pytest.StashKey[list[tuple[str, int, int]]]()


@pytest.fixture
def ledger(pytestconfig: pytest.Config) -> Ledger:
    rows = pytestconfig.stash.setdefault(LEDGER, [])
    return lambda what, num_tokens, num_ties: rows.append((what, num_tokens, num_ties))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, num_tokens, num_ties in terminalreporter.config.stash.get(LEDGER, []):
        terminalreporter.write_line(f"{what:50} {num_tokens:7} tokens {num_ties:4} ties and partings")
