"""The parent's side of the template process: one question at a time, a time limit, a new one after a kill."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.contract.errors import MeshError, Reason
from services.tokenizer.outline import Outline
from services.tokenizer.prompt import Conversation
from services.tokenizer.template_source import TemplateSource

_CHECKOUT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 10.0


class TemplateError(Exception):
    """The template cannot be used at all. One short cause."""


class TemplateWorker:
    """Renders in a child process that was started afresh (never forked) and may be killed."""

    def __init__(self, source: TemplateSource, time_limit_s: float) -> None:
        self._source = source
        self._time_limit_s = time_limit_s
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._exchanges: set[asyncio.Task[dict[str, Any]]] = set()
        self.num_restarts = 0

    async def start(self) -> None:
        """Starts the child and compiles the template. Raises TemplateError."""
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.tokenizer.template_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_CHECKOUT,
            start_new_session=True,
        )
        setup = {"source": self._source.text, "variables": dict(self._source.variables)}
        try:
            answer = await asyncio.wait_for(self._exchange(setup), START_LIMIT_S)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await self._kill()
            raise TemplateError("its process did not start") from error
        if "error" in answer:
            await self._kill()
            raise TemplateError(f"it does not compile ({answer['error']})")

    async def stop(self) -> None:
        """Ends the child."""
        await self._kill()

    async def outline(self, roles: Sequence[str], mark: str, conversation: Conversation) -> Outline:
        """What the template writes around these roles. `conversation` names the field of a refusal."""
        answer = await self._ask({"roles": list(roles), "mark": mark}, conversation)
        parts = answer["parts"]
        return Outline(None if parts is None else tuple(parts), answer["is_dated"])

    async def render(self, contents: Sequence[str], conversation: Conversation) -> tuple[str, bool]:
        """The rendered prompt with these contents, and whether it holds the date."""
        roles = [turn.role for turn in conversation.turns]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        answer = await self._ask({"messages": messages}, conversation)
        return answer["text"], answer["is_dated"]

    async def _ask(self, request: Mapping[str, Any], conversation: Conversation) -> dict[str, Any]:
        # A caller that goes away must not leave an unread answer in the pipe.
        exchange = asyncio.create_task(self._ask_in_turn(request))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        answer = await asyncio.shield(exchange)
        if "refusal" in answer:
            raise conversation.template_error(answer["refusal"], answer["index"])
        return answer

    async def _ask_in_turn(self, request: Mapping[str, Any]) -> dict[str, Any]:
        async with self._turn:
            if self._child is None or self._child.returncode is not None:
                self.num_restarts += 1
                await self._restart()
            try:
                return await asyncio.wait_for(self._exchange(request), self._time_limit_s)
            except TimeoutError as error:
                await self._kill()
                limit = f"the chat template took longer than {self._time_limit_s:g} s"
                raise MeshError(Reason.TEMPLATE, limit) from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                await self._kill()
                raise MeshError(
                    Reason.TEMPLATE, "the chat template's process ended on this prompt"
                ) from error

    async def _restart(self) -> None:
        try:
            await self.start()
        except TemplateError as error:
            raise MeshError(Reason.UNAVAILABLE, f"the chat template: {error}", retry_delay_s=1.0) from error

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        body = json.dumps(request).encode()
        child.stdin.write(len(body).to_bytes(4, "little") + body)
        await child.stdin.drain()
        length = int.from_bytes(await child.stdout.readexactly(4), "little")
        answer: dict[str, Any] = json.loads(await child.stdout.readexactly(length))
        return answer

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            child.kill()
        await child.wait()
