"""One line per event, the same form in every service: time level service message key=value.

Callers pass fields by `extra={...}` (the library forbids its own words there: name, args, module, process);
prompt text is never among them.
"""

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Formats a record as one line; a traceback becomes the field `traceback`, its line ends escaped."""

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{when}.{int(record.msecs):03d}Z {record.levelname.lower()} {self._service_name}"
        parts = [head, _one_line(record.getMessage())]
        parts += [f"{key}={_quoted(value)}" for key, value in vars(record).items() if key not in _STANDARD]
        if record.exc_info and record.exc_info[1] is not None:
            parts.append(f"traceback={json.dumps(self.formatException(record.exc_info), ensure_ascii=False)}")
        return " ".join(parts)


def start_logging(service_name: str, level: str) -> None:
    """Sends the process's log to stderr. Called once, by a process entry."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(service_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(mark in text for mark in ' "=\\') and text != ""
    return text if is_plain else json.dumps(text, ensure_ascii=False)
