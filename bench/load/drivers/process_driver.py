"""Drives a library without a server, through a small adapter process that may live in another environment.

The command of `process:COMMAND` is started once. Both sides write one JSON object per line:

    adapter  {"ready": true}                                            first, once the model is loaded
    tool     {"id": 7, "prompt": "...", "max_tokens": 64, "ignore_eos": true, "temperature": 0.0}
    adapter  {"tokens": [[7, 1], [8, 1]]}                               after each step: id, new tokens
    adapter  {"end": 7, "prompt_tokens": 31, "output_tokens": 64}       or {"end": 7, "error": "why"}

The end of the adapter's standard input asks it to leave. Other lines of its output are passed over.
"""

import asyncio
import itertools
import json
import shlex
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from bench.load.drivers.driver import Answer, Arrival, RequestError, Turn
from bench.load.spec import LoadSpec, SpecError

READY_S = 300.0
LEAVE_S = 10.0
_LINE_LIMIT = 1 << 20


class ProcessDriver:
    """Completions only: an adapter gets the text as it stands."""

    def __init__(self, spec: LoadSpec) -> None:
        if spec.uses_chat or spec.num_processes > 1:
            raise SpecError("an adapter process takes one tool process and no conversations")
        self._spec = spec
        self._command = shlex.split(spec.target.removeprefix("process:"))
        self._ids = itertools.count()
        self._running: dict[int, tuple[list[Arrival], asyncio.Future[None]]] = {}
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._end_of_adapter = ""
        """Why nobody answers any more."""

    async def open(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=_LINE_LIMIT
            )
        except OSError as error:
            raise RequestError(f"{self._command[0]}: {error.strerror}") from error
        self._process = process
        try:
            async with asyncio.timeout(READY_S):
                while "ready" not in await _next_object(process):
                    pass
        except TimeoutError as error:
            raise RequestError(f"the adapter is not ready after {READY_S:.0f} s") from error
        self._reader = asyncio.create_task(self._listen(process))

    async def close(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), LEAVE_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def send(self, turn: Turn, arrivals: list[Arrival]) -> None:
        assert self._process is not None and self._process.stdin is not None
        if self._end_of_adapter:
            raise RequestError(self._end_of_adapter)
        request_id = next(self._ids)
        end = asyncio.get_running_loop().create_future()
        self._running[request_id] = (arrivals, end)
        request = {
            "id": request_id,
            "prompt": turn.text,
            "max_tokens": turn.max_tokens,
            "ignore_eos": self._spec.ignore_eos,
            "temperature": self._spec.temperature,
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            await asyncio.wait_for(end, self._spec.timeout_s)
        except TimeoutError as error:
            raise RequestError("timeout") from error
        finally:
            self._running.pop(request_id, None)

    def read(self, arrivals: Sequence[Arrival]) -> Answer:
        tokens = [(at_s, count) for at_s, count in arrivals if isinstance(count, int)]
        (end,) = (payload for _, payload in arrivals if isinstance(payload, dict))
        return Answer(
            [at_s for at_s, _ in tokens],
            [count for _, count in tokens],
            "",
            num_prompt_tokens=end.get("prompt_tokens"),
            num_output_tokens=end.get("output_tokens"),
        )

    async def _listen(self, process: Process) -> None:
        try:
            while True:
                self._take(await _next_object(process), time.monotonic())
        except RequestError as error:
            self._end_of_adapter = str(error)
            for _, end in self._running.values():
                if not end.done():
                    end.set_exception(RequestError(self._end_of_adapter))

    def _take(self, message: dict[str, Any], at_s: float) -> None:
        for request_id, count in message.get("tokens", ()):
            if request_id in self._running:
                self._running[request_id][0].append((at_s, int(count)))
        if message.get("end") in self._running:
            arrivals, end = self._running[message["end"]]
            arrivals.append((at_s, message))
            if end.done():
                return
            if "error" in message:
                end.set_exception(RequestError(str(message["error"])))
            else:
                end.set_result(None)


async def _next_object(process: Process) -> dict[str, Any]:
    """Raises RequestError at the end of the output."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        with suppress(ValueError):  # what a library prints may begin like an object, too
            if isinstance(message := json.loads(line), dict):
                return message
    raise RequestError(f"the adapter ended with {await process.wait()}")
