"""Drives pagemesh gateways. Events stay bytes until the run is over, so that a token costs the tool less."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import grpc

from bench.load.drivers.driver import Answer, Arrival, RequestError, Turn
from bench.load.spec import Cache, LoadSpec
from pagemesh.errors import PagemeshError, error_of
from pagemesh.gateways import CHANNEL_OPTIONS, call_metadata
from pagemesh.request import CachePolicy, Options, Prompt, RawText, generate_request
from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc

_GENERATE = "/pagemesh.v1.GatewayService/Generate"
_USER = "load"
_POLICIES: Mapping[Cache, CachePolicy] = {
    Cache.READ_ONLY: CachePolicy.READ_ONLY,
    Cache.BYPASS: CachePolicy.BYPASS,
}


@dataclass(frozen=True, slots=True)
class _Gateway:
    channel: grpc.aio.Channel
    stub: Any
    """GatewayServiceAsyncStub, which exists for type checkers only."""
    generate: Any
    """Takes and gives bytes."""


class GrpcDriver:
    """Spreads conversations over the gateways in turn."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._addresses = spec.target.removeprefix("grpc://").split(",")
        self._metadata = call_metadata(spec.api_key or None)
        self._gateways: list[_Gateway] = []
        self._turns = cycle(range(len(self._addresses)))
        self._sessions: dict[int, tuple[_Gateway, str]] = {}
        """Of conversations under way: gateway and session id."""

    async def open(self) -> None:
        self._gateways = [_connect(address) for address in self._addresses]
        for gateway in self._gateways:
            await self._call(gateway.stub.ListModels, gateway_pb2.ListModelsRequest())

    async def close(self) -> None:
        for gateway in self._gateways:
            await gateway.channel.close()

    async def send(self, turn: Turn, arrivals: list[Arrival]) -> None:
        request = generate_request(self._prompt(turn), **self._options(turn))
        gateway = await self._gateway_of(turn, request)
        try:
            await self._stream(gateway, request.SerializeToString(), arrivals)
        except RequestError:
            with suppress(RequestError):  # what failed first is what is told
                await self._leave(turn.conversation)
            raise
        if turn.is_last:
            await self._leave(turn.conversation)

    def read(self, arrivals: Sequence[Arrival]) -> Answer:
        times, counts, texts, server_times = [], [], [], []
        complete = None
        for at_s, payload in arrivals:
            assert isinstance(payload, bytes)
            event = gateway_pb2.GenerateResponse.FromString(payload)
            if event.HasField("token"):
                times.append(at_s)
                counts.append(len(event.token.ids))
                texts.append(event.token.text)
                server_times.append(event.timestamp.seconds + event.timestamp.nanos * 1e-9)
            elif event.HasField("complete"):
                complete = event.complete
        if complete is None:
            raise RequestError("the stream ended without complete")
        usage = complete.usage
        return Answer(
            times,
            counts,
            "".join(texts),
            num_prompt_tokens=usage.prompt_tokens,
            num_output_tokens=usage.completion_tokens,
            num_cached_tokens=usage.cached_tokens,
            server_ttft_ms=complete.receipt.ttft_ms,
            server_times_s=server_times,
        )

    async def _stream(self, gateway: _Gateway, request: bytes, arrivals: list[Arrival]) -> None:
        call = gateway.generate(request, timeout=self._spec.timeout_s, metadata=self._metadata)
        now_s = time.monotonic
        try:
            async for event in call:
                arrivals.append((now_s(), event))
        except grpc.aio.AioRpcError as error:
            raise RequestError(_line(error_of(error))) from error
        finally:
            call.cancel()

    def _prompt(self, turn: Turn) -> Prompt:
        return turn.text if self._spec.uses_chat else RawText(turn.text)

    def _options(self, turn: Turn) -> Options:
        options = Options(
            model=self._spec.model,
            max_tokens=turn.max_tokens,
            temperature=self._spec.temperature,
            ignore_eos=self._spec.ignore_eos,
        )
        policy = _POLICIES.get(self._spec.cache)
        return options if policy is None else Options(**options, cache_policy=policy)

    async def _gateway_of(self, turn: Turn, request: gateway_pb2.GenerateRequest) -> _Gateway:
        """Opens a session with a conversation's first turn, and names it in the request."""
        if turn.is_whole:
            return self._gateways[next(self._turns)]
        if turn.conversation not in self._sessions:
            gateway = self._gateways[next(self._turns)]
            opening = gateway_pb2.OpenSessionRequest(user_id=_USER, model=self._spec.model)
            session = await self._call(gateway.stub.OpenSession, opening)
            self._sessions[turn.conversation] = (gateway, session.session_id)
        gateway, session_id = self._sessions[turn.conversation]
        request.session.id, request.session.user_id = session_id, _USER
        return gateway

    async def _leave(self, conversation: int) -> None:
        """Erases its session, if it has one."""
        if conversation in self._sessions:
            gateway, session_id = self._sessions.pop(conversation)
            release = gateway_pb2.ReleaseSessionRequest(session_id=session_id, user_id=_USER)
            await self._call(gateway.stub.ReleaseSession, release)

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._spec.timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise RequestError(_line(error_of(error))) from error


def _connect(address: str) -> _Gateway:
    channel = grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS.items()))
    generate: Any = channel.unary_stream(_GENERATE, request_serializer=None, response_deserializer=None)
    return _Gateway(channel, gateway_pb2_grpc.GatewayServiceStub(channel), generate)


def _line(error: PagemeshError) -> str:
    return f"{error.code.name} {error.reason or ''}".strip()
