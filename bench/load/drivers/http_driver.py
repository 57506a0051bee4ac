"""Drives servers of OpenAI-style streaming completions (vLLM, llama.cpp's server and many others).

Chunks stay bytes until the run is over. Every request has a connection of its own, since some of these
servers close those they said they would keep.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp

from bench.load.drivers.driver import Answer, Arrival, RequestError, Turn
from bench.load.spec import LoadSpec

_EVENT = b"data:"
_DONE = b"[DONE]"


class HttpDriver:
    """Server-sent events, one per token or few."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._base = spec.target.rstrip("/").removesuffix("/v1")
        self._path = "/v1/chat/completions" if spec.uses_chat else "/v1/completions"
        self._model = spec.model
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        headers = {"Authorization": f"Bearer {self._spec.api_key}"} if self._spec.api_key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._spec.timeout_s),
            headers=headers,
        )
        self._model = self._model or await self._first_model()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, turn: Turn, arrivals: list[Arrival]) -> None:
        assert self._session is not None
        now_s = time.monotonic
        try:
            async with self._session.post(self._base + self._path, json=self._body(turn)) as response:
                if response.status != 200:
                    raise RequestError(f"HTTP {response.status}")
                async for chunk in response.content.iter_any():
                    arrivals.append((now_s(), chunk))
        except TimeoutError as error:
            raise RequestError("timeout") from error
        except aiohttp.ClientError as error:
            raise RequestError(type(error).__name__) from error

    def read(self, arrivals: Sequence[Arrival]) -> Answer:
        times: list[float] = []
        texts: list[str] = []
        usage: Mapping[str, Any] = {}
        is_done = False
        for at_s, event in _events(arrivals):
            if event is None:
                is_done = True
                continue
            if "error" in event:
                raise RequestError("an error inside the stream")
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                is_done = is_done or choice.get("finish_reason") is not None
                if (text := _text(choice)) is not None:
                    times.append(at_s)
                    texts.append(text)
        if not is_done:
            raise RequestError("the stream was cut")
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            times,
            [1] * len(times),
            "".join(texts),
            num_prompt_tokens=usage.get("prompt_tokens"),
            num_output_tokens=usage.get("completion_tokens"),
            num_cached_tokens=details.get("cached_tokens"),
        )

    def _body(self, turn: Turn) -> dict[str, object]:
        said: dict[str, object] = {"prompt": turn.text}
        if self._spec.uses_chat:
            roles = ("user", "assistant")
            texts = (*turn.history, turn.text)
            said = {
                "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)],
            }
        return {
            "model": self._model,
            **said,
            "max_tokens": turn.max_tokens,
            "temperature": self._spec.temperature,
            "ignore_eos": self._spec.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._spec.extra,
        }

    async def _first_model(self) -> str:
        assert self._session is not None
        try:
            async with self._session.get(f"{self._base}/v1/models") as response:
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            raise RequestError(f"{self._base} lists no model: {type(error).__name__}") from error


def _events(arrivals: Sequence[Arrival]) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """Each event with the time at which its last byte arrived; None is the end's mark."""
    rest = b""
    for at_s, chunk in arrivals:
        assert isinstance(chunk, bytes)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(_EVENT):
                payload = line[len(_EVENT) :].strip()
                yield at_s, None if payload == _DONE else _object(payload)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError as error:
        raise RequestError("an event is not JSON") from error
    if not isinstance(event, dict):
        raise RequestError("an event is not an object")
    return event


def _text(choice: Mapping[str, Any]) -> str | None:
    """The text of a token event; None for what carries none: a chat's opening role, an empty last event."""
    delta = choice.get("delta")
    if delta is not None:
        text = delta.get("content") or delta.get("reasoning_content")
        return str(text) if text else None
    text = choice.get("text")
    is_empty_end = not text and choice.get("finish_reason") is not None
    return None if text is None or is_empty_end else str(text)
