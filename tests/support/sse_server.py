"""An OpenAI-style streaming server in a thread: as slow, as odd and as broken as a test wants."""

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from aiohttp import web


class SseServer:
    """Streams `text` word by word. `held` requests wait until `release` is called."""

    def __init__(
        self, *, chunks: Iterable[bytes] | None = None, status: int = 200, hold_from: int | None = None
    ) -> None:
        """`chunks` are sent as they are instead of a well-formed stream."""
        self._chunks = chunks
        self._status = status
        self._hold_from = hold_from
        self.bodies: list[dict[str, object]] = []
        self.paths: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def release(self) -> None:
        """Answers all that were held, and holds no more."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        self.headers.append(request.headers)
        if self._hold_from is not None and len(self.bodies) > self._hold_from:
            await self._released.wait()
        response = web.StreamResponse(status=self._status, headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_chat = request.path.endswith("/chat/completions")
        for chunk in self._chunks or well_formed(int(body["max_tokens"]), is_chat=is_chat):
            await response.write(chunk)
            await asyncio.sleep(0)
        return response


def well_formed(num_tokens: int, *, is_chat: bool = False, num_prompt_tokens: int = 7) -> list[bytes]:
    """As vLLM does it: the last token carries the reason, then usage, then the mark of the end."""
    events: list[dict[str, object]] = []
    if is_chat:
        events.append({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    for index in range(num_tokens):
        said = {"delta": {"content": " so"}} if is_chat else {"text": " so"}
        reason = "length" if index == num_tokens - 1 else None
        events.append({"choices": [{**said, "finish_reason": reason}], "usage": None})
    events.append(
        {"choices": [], "usage": {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}}
    )
    return [*map(sse, events), b"data: [DONE]\n\n"]


def sse(event: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"
