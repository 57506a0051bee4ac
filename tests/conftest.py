"""What holds for every test: in CI nothing may be skipped."""

import os

import pytest

import tests.support.interpreted  # noqa: F401  before any test module imports a kernel


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped:", yellow=True)
        for report in skipped:
            terminalreporter.write_line(f"  {report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    has_skips = reporter is not None and reporter.stats.get("skipped")
    if os.environ.get("CI") == "true" and has_skips and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
