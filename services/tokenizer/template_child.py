"""The template's own process: requests on stdin, answers on stdout; it ends with its parent or by a kill.

A frame is a 4-byte little-endian length and JSON.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO

from jinja2 import TemplateError

from services.tokenizer.chat_template import ChatTemplate, TemplateRefusal

MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    """Serves one parent until it closes the pipe."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent drains first, then closes the pipe
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = _read(source)
    if setup is None:
        return
    try:
        template = ChatTemplate(setup["source"], setup["variables"], _now)
    except TemplateError as error:
        _write(sink, {"error": f"line {getattr(error, 'lineno', '?')}: {type(error).__name__}"})
        return
    _write(sink, {})
    while (request := _read(source)) is not None:
        _write(sink, _answer(template, request))


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _answer(template: ChatTemplate, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if "roles" in request:
            outline = template.outline(request["roles"], request["mark"])
            return {"parts": outline.parts, "is_dated": outline.is_dated}
        rendered = template.render(request["messages"])
        return {"text": rendered.text, "is_dated": rendered.is_dated}
    except TemplateRefusal as refusal:
        return {"refusal": refusal.reason, "index": refusal.index}


def _read(source: BinaryIO) -> dict[str, Any] | None:
    header = source.read(4)
    if len(header) < 4:
        return None
    frame: dict[str, Any] = json.loads(source.read(int.from_bytes(header, "little")))
    return frame


def _write(sink: BinaryIO, frame: Mapping[str, Any]) -> None:
    body = json.dumps(frame).encode()
    sink.write(len(body).to_bytes(4, "little") + body)
    sink.flush()


if __name__ == "__main__":
    main()
