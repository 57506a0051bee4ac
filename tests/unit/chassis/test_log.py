"""One event is one line, whatever is in it."""

import logging
import re
import sys

from services.chassis.log import LineFormatter


def _line(message: str, exc_info: bool = False, **fields: object) -> str:
    logger = logging.getLogger("probe")
    info = sys.exc_info() if exc_info else None
    record = logger.makeRecord("probe", logging.INFO, "f", 1, message, (), info, extra=fields)
    return LineFormatter("pagemesh-probe").format(record)


def test_time_level_service_message_fields() -> None:
    when, rest = _line("started", port=7600, empty="", title="a b").split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", when)
    assert rest == 'info pagemesh-probe started port=7600 empty="" title="a b"'


def test_line_ends_and_quotes_cannot_forge_a_line() -> None:
    line = _line("one\ntwo", user='x"\ny=z')
    assert "\n" not in line
    assert line.endswith(r'one two user="x\"\ny=z"')


def test_traceback_stays_in_its_line() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        line = _line("failed", exc_info=True)
    assert "\n" not in line and "traceback=" in line and "ValueError: boom" in line
