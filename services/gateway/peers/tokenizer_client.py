"""Calls to tokenizers: round robin, elsewhere when one fails; and their definition, to decode with.

It knows no requests or sessions; an encode may be repeated freely, since nothing depends on it yet.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc

from pagemesh.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.chassis.backoff import Backoff
from services.contract.errors import MeshError, Reason, unavailable
from services.contract.status import from_rpc_error
from services.gateway.text.detokenizer import TokenTable, UnsupportedTokenizer

INFO_TIMEOUT_S = 2.0
DEFINITION_TIMEOUT_S = 30.0
REFRESH_S = 5.0
"""How soon another process behind the same address is noticed."""
ENCODE_BASE_S = 3.0
ENCODE_S_PER_MIB = 2.0
"""One try may take so long; then another tokenizer is asked."""
MAX_TRIES = 4
_RETRIED = frozenset({Reason.UNAVAILABLE, Reason.DRAINING, Reason.DEADLINE})

Metadata = tuple[tuple[str, str], ...]

logger = logging.getLogger(__name__)


class BadDefinition(Exception):
    """The definition is incomplete, not the announced one, or of a kind that cannot be decoded with."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One tokenizer's frozen configuration and what its ids spell."""

    info: tokenizer_pb2.GetTokenizerInfoResponse
    table: TokenTable


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded prompt, and the vocabulary its ids belong to."""

    ids: list[int]
    num_truncated: int
    vocabulary: Vocabulary


@dataclass(eq=False, slots=True)
class Endpoint:
    """One tokenizer; vocabulary is None while it does not answer."""

    address: str
    stub: "tokenizer_pb2_grpc.TokenizerServiceAsyncStub"
    vocabulary: Vocabulary | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class TokenizerPool:
    """All tokenizers of this gateway, of one or several models."""

    def __init__(self) -> None:
        self._endpoints: list[Endpoint] = []
        self._tables: dict[str, TokenTable] = {}
        self._known: dict[str, Vocabulary] = {}
        """By model, the last that answered: what is encoded already needs no tokenizer."""
        self._next = 0
        self._changed = asyncio.Event()

    async def keep(self, channel: grpc.aio.Channel, address: str, rng: random.Random) -> None:
        """Keeps one tokenizer's configuration up to date, over its restarts."""
        endpoint = Endpoint(address, tokenizer_pb2_grpc.TokenizerServiceStub(channel))
        backoff = Backoff(rng)
        self._endpoints.append(endpoint)
        try:
            while True:
                endpoint.lost.clear()
                if await self._refresh(endpoint):
                    backoff.reset()
                    await _wait(endpoint.lost, REFRESH_S)
                else:
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._endpoints.remove(endpoint)

    @property
    def is_up(self) -> bool:
        """At least one tokenizer answers."""
        return any(endpoint.vocabulary for endpoint in self._endpoints)

    def models(self) -> list[str]:
        """Names that a tokenizer serves, or has served while this process lives."""
        return sorted(self._known)

    def vocabulary(self, model: str) -> Vocabulary | None:
        """Of the model's tokenizer that answered last."""
        return self._known.get(model)

    async def wait_up(self, model: str, seconds: float) -> None:
        """Waits until a tokenizer of the model (of any, if it is empty) answers, but not longer."""
        try:
            async with asyncio.timeout(seconds):
                while not (model in self._known if model else self._known):
                    await self._changed.wait()
        except TimeoutError:
            return

    async def encode(
        self, model: str, request: tokenizer_pb2.EncodeRequest, give_up_s: float, metadata: Metadata
    ) -> Encoded:
        """Encodes with any of the model's tokenizers until give_up_s, on the loop's clock.

        Raises the tokenizer's MeshError, or UNAVAILABLE.
        """
        loop = asyncio.get_running_loop()
        tried: list[Endpoint] = []
        for _ in range(MAX_TRIES):
            endpoint = await self._wait_endpoint(model, give_up_s - loop.time(), tried)
            if endpoint is None or endpoint.vocabulary is None:
                break
            left_s = give_up_s - loop.time()
            try:
                return await _encode(endpoint, endpoint.vocabulary, request, left_s, metadata)
            except MeshError as error:
                if error.reason not in _RETRIED:
                    raise
                if error.reason is Reason.DEADLINE and left_s <= _try_s(request):
                    break  # the caller's time was over, which says nothing of the tokenizer
                logger.warning(
                    "encode failed", extra={"tokenizer": endpoint.address, "reason": error.reason.value}
                )
                self._lose(endpoint)
                tried.append(endpoint)
        raise unavailable("no tokenizer answers", retry_delay_s=1.0)

    def _lose(self, endpoint: Endpoint) -> None:
        """It is asked for its configuration before it is used again: another process may answer."""
        endpoint.vocabulary = None
        endpoint.lost.set()

    async def _wait_endpoint(self, model: str, seconds: float, tried: Iterable[Endpoint]) -> Endpoint | None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while (endpoint := self._pick(model, tried)) is None:
                    await self._changed.wait()
        except TimeoutError:
            return None
        return endpoint

    def _pick(self, model: str, tried: Iterable[Endpoint]) -> Endpoint | None:
        """In turn; those that have failed for this request only if there is no other."""
        ready = [
            endpoint
            for endpoint in self._endpoints
            if endpoint.vocabulary is not None and endpoint.vocabulary.info.model == model
        ]
        fresh = [endpoint for endpoint in ready if endpoint not in tried] or ready
        if not fresh:
            return None
        self._next += 1
        return fresh[self._next % len(fresh)]

    async def _refresh(self, endpoint: Endpoint) -> bool:
        try:
            info = await endpoint.stub.GetTokenizerInfo(
                tokenizer_pb2.GetTokenizerInfoRequest(), timeout=INFO_TIMEOUT_S
            )
            if endpoint.vocabulary is not None and endpoint.vocabulary.info == info:
                return True
            if not info.model:
                raise BadDefinition("it names no model")
            table = self._tables.get(info.definition_sha256) or await _load_table(endpoint, info)
        except grpc.aio.AioRpcError as error:
            if endpoint.vocabulary is not None:
                logger.warning(
                    "tokenizer is away", extra={"tokenizer": endpoint.address, "cause": error.code().name}
                )
            endpoint.vocabulary = None
            return False
        except (BadDefinition, UnsupportedTokenizer) as error:
            logger.error(
                "tokenizer cannot be used", extra={"tokenizer": endpoint.address, "cause": str(error)}
            )
            endpoint.vocabulary = None
            return False
        self._tables = {info.definition_sha256: table} | self._used_tables()
        endpoint.vocabulary = self._known[info.model] = Vocabulary(info, table)
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    def _used_tables(self) -> dict[str, TokenTable]:
        up = (endpoint.vocabulary for endpoint in self._endpoints)
        return {v.info.definition_sha256: v.table for v in up if v is not None}


async def _encode(
    endpoint: Endpoint,
    vocabulary: Vocabulary,
    request: tokenizer_pb2.EncodeRequest,
    left_s: float,
    metadata: Metadata,
) -> Encoded:
    try:
        response = await endpoint.stub.Encode(
            request, timeout=min(left_s, _try_s(request)), metadata=metadata
        )
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    return Encoded(list(response.ids), response.num_truncated, vocabulary)


def _try_s(request: tokenizer_pb2.EncodeRequest) -> float:
    return ENCODE_BASE_S + ENCODE_S_PER_MIB * request.ByteSize() / 2**20


async def _load_table(endpoint: Endpoint, info: tokenizer_pb2.GetTokenizerInfoResponse) -> TokenTable:
    pieces: list[bytes] = []
    request = tokenizer_pb2.GetTokenizerDefinitionRequest()
    async for piece in endpoint.stub.GetTokenizerDefinition(request, timeout=DEFINITION_TIMEOUT_S):
        pieces.append(piece.content)
    definition = b"".join(pieces)
    if hashlib.sha256(definition).hexdigest() != info.definition_sha256:
        raise BadDefinition(f"definition of {len(definition)} bytes has another hash than announced")
    return await asyncio.to_thread(TokenTable.from_definition, definition)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
