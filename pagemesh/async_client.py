"""The asynchronous client: the same as `Client`, on the running event loop."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

import grpc

from pagemesh.catalog import Explanation, Model, explanation_of, models_of
from pagemesh.client import STREAM_TIMEOUT_S, UNARY_TIMEOUT_S
from pagemesh.errors import PagemeshError, broken_stream, error_of
from pagemesh.events import Answer, Event, collect
from pagemesh.gateways import CHANNEL_OPTIONS, DEFAULT_ADDRESS, Gateways, call_metadata
from pagemesh.request import Options, Prompt, count_tokens_request, generate_request, with_request_id
from pagemesh.resume import StreamCursor
from pagemesh.retry import RetryBudget, RetryPolicy, RetryState
from pagemesh.session import SessionCursor
from pagemesh.v1 import gateway_pb2
from pagemesh.v1.gateway_pb2_grpc import GatewayServiceStub

if TYPE_CHECKING:
    from pagemesh.v1.gateway_pb2_grpc import GatewayServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")
AsyncEventStream = AsyncGenerator[Event, None]
"""Closing it (`contextlib.aclosing`) cancels the request."""


class AsyncClient:
    """Calls the first gateway that answers; a broken stream goes on at the next, without gap or repeat."""

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        api_key: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_s: float = STREAM_TIMEOUT_S,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """`timeout_s` bounds a whole stream, retries included. Without credentials there is no TLS."""
        self._gateways = Gateways(addresses, lambda address: _open(address, credentials), _stub_of)
        self._metadata = call_metadata(api_key)
        self._timeout_s = timeout_s
        self._policy = retry_policy or RetryPolicy()
        self._budget = RetryBudget(self._policy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all channels; streams in flight end."""
        for channel in self._gateways.channels():
            await channel.close()

    def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncEventStream:
        """Streams the answer. The request is sent when the first event is asked for."""
        return self.stream(generate_request(prompt, **options), timeout_s=timeout_s)

    async def collect(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Answer:
        """The whole answer at once."""
        stream = self.generate(prompt, timeout_s=timeout_s, **options)
        return collect([event async for event in stream])

    async def generate_text(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> str:
        """Text of the first choice."""
        return (await self.collect(prompt, timeout_s=timeout_s, **options)).text

    async def stream(
        self, request: gateway_pb2.GenerateRequest, *, timeout_s: float | None = None
    ) -> AsyncEventStream:
        """Streams a request of the wire's own type, with the same retries and resumes."""
        deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        cursor = StreamCursor(with_request_id(request))
        retries = RetryState(self._policy, self._budget, random.random)
        while not cursor.is_complete:
            address, stub = self._gateways.current()
            try:
                attempt = self._attempt(stub, address, cursor, retries, deadline_s)
                async with aclosing(attempt) as events:
                    async for event in events:
                        yield event
            except PagemeshError as error:
                if not cursor.can_go_on(error):
                    raise
                await self._back_off(address, retries, error, deadline_s)
                cursor.go_on()
        retries.succeeded()

    async def open_session(
        self, user_id: str, *, model: str = "", timeout_s: float = UNARY_TIMEOUT_S
    ) -> "AsyncSession":
        request = gateway_pb2.OpenSessionRequest(user_id=user_id, model=model)
        response = await self._call(lambda stub: stub.OpenSession, request, timeout_s)
        return AsyncSession(self, SessionCursor(response.session_id, user_id, response.version), model)

    async def release_session(
        self, session_id: str, user_id: str, *, timeout_s: float = UNARY_TIMEOUT_S
    ) -> None:
        """Erases a session's history."""
        request = gateway_pb2.ReleaseSessionRequest(session_id=session_id, user_id=user_id)
        await self._call(lambda stub: stub.ReleaseSession, request, timeout_s)

    async def count_tokens(
        self, prompt: Prompt, *, model: str = "", timeout_s: float = UNARY_TIMEOUT_S
    ) -> int:
        """Ids that `generate` would run for this prompt, control tokens included."""
        request = count_tokens_request(prompt, model)
        return (await self._call(lambda stub: stub.CountTokens, request, timeout_s)).num_tokens

    async def explain(
        self, prompt: Prompt, *, timeout_s: float = UNARY_TIMEOUT_S, **options: Unpack[Options]
    ) -> Explanation:
        """What `generate` would do now, without doing it."""
        request = gateway_pb2.ExplainRequest(request=generate_request(prompt, **options))
        return explanation_of(await self._call(lambda stub: stub.Explain, request, timeout_s))

    async def list_models(self, *, timeout_s: float = UNARY_TIMEOUT_S) -> tuple[Model, ...]:
        request = gateway_pb2.ListModelsRequest()
        return models_of(await self._call(lambda stub: stub.ListModels, request, timeout_s))

    async def _attempt(
        self,
        stub: "GatewayServiceAsyncStub",
        address: str,
        cursor: StreamCursor,
        retries: RetryState,
        deadline_s: float,
    ) -> AsyncEventStream:
        time_left_s = deadline_s - time.monotonic()
        call = stub.Generate(cursor.request(), timeout=time_left_s, metadata=self._metadata)
        try:
            async for response in call:
                event = cursor.accept(response, address)
                if event is not None:
                    retries.progressed()
                    yield event
        except grpc.aio.AioRpcError as error:
            if not cursor.is_complete:  # what breaks after `complete` takes nothing from the answer
                raise error_of(error) from None
        finally:
            call.cancel()
        if not cursor.is_complete:
            raise broken_stream("the stream ended without its last event")

    async def _call(
        self,
        method_of: Callable[
            ["GatewayServiceAsyncStub"], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"
        ],
        request: Request,
        timeout_s: float,
    ) -> Response:
        deadline_s = time.monotonic() + timeout_s
        retries = RetryState(self._policy, self._budget, random.random)
        while True:
            address, stub = self._gateways.current()
            time_left_s = deadline_s - time.monotonic()
            try:
                response = await method_of(stub)(request, timeout=time_left_s, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                await self._back_off(address, retries, error_of(error), deadline_s)
                continue
            retries.succeeded()
            return response

    async def _back_off(
        self, address: str, retries: RetryState, error: PagemeshError, deadline_s: float
    ) -> None:
        """Waits and leaves the gateway, or raises the error if it is final."""
        if not error.is_retryable:
            raise error
        self._gateways.leave(address)
        delay_s = retries.next_delay_s(error, deadline_s - time.monotonic())
        if delay_s is None:
            raise error
        await asyncio.sleep(delay_s)


class AsyncSession:
    """Turns of one conversation; the mesh keeps the history. Leaving the `async with` block erases it."""

    def __init__(self, client: AsyncClient, cursor: SessionCursor, model: str) -> None:
        self._client = client
        self._cursor = cursor
        self._model = model

    @property
    def session_id(self) -> str:
        return self._cursor.session_id

    @property
    def version(self) -> int | None:
        return self._cursor.version

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    def generate(
        self,
        prompt: Prompt,
        *,
        keep_output_tokens: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncEventStream:
        """Streams the answer to the next turn; the prompt is the new turn only."""
        request = generate_request(prompt, **options)
        request.model = request.model or self._model
        return self._turn(request, keep_output_tokens, timeout_s)

    async def collect(
        self,
        prompt: Prompt,
        *,
        keep_output_tokens: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        stream = self.generate(prompt, keep_output_tokens=keep_output_tokens, timeout_s=timeout_s, **options)
        return collect([event async for event in stream])

    async def release(self) -> None:
        """Erases the history."""
        await self._client.release_session(self.session_id, self._cursor.user_id)

    async def _turn(
        self,
        request: gateway_pb2.GenerateRequest,
        keep_output_tokens: int | None,
        timeout_s: float | None,
    ) -> AsyncEventStream:
        request.session.CopyFrom(self._cursor.begin_turn(keep_output_tokens))
        try:
            async with aclosing(self._client.stream(request, timeout_s=timeout_s)) as events:
                async for event in events:
                    self._cursor.observe(event)
                    yield event
        except PagemeshError as error:
            self._cursor.turn_failed(error)
            raise


def _stub_of(channel: grpc.aio.Channel) -> "GatewayServiceAsyncStub":
    return GatewayServiceStub(channel)


def _open(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    options = list(CHANNEL_OPTIONS.items())
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)
