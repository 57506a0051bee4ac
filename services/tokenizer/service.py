"""gRPC adapter: protobuf in, protobuf out, one span per Encode. Errors leave as MeshError."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from pagemesh.v1 import gateway_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.chassis.telemetry import context_from, traceparent_in
from services.contract.errors import MeshError, Reason, invalid_field
from services.tokenizer.definition import Definition
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.prompt import (
    ROLES,
    Conversation,
    Turn,
    check_text,
    check_turns,
    check_weight,
    parse_messages,
)
from services.tokenizer.prompt_encoder import EncodedPrompt, Limit, PromptEncoder, check_tail, num_bytes
from services.tokenizer.token_bytes import TokenBytes
from services.tokenizer.truncation import Side

Context = grpc.aio.ServicerContext[Any, Any]

_SIDES: dict[int, Side] = {
    gateway_pb2.TRUNCATION_SIDE_UNSPECIFIED: Side.NONE,
    gateway_pb2.TRUNCATION_SIDE_LEFT: Side.LEFT,
    gateway_pb2.TRUNCATION_SIDE_RIGHT: Side.RIGHT,
}
_ROLES: dict[int, str] = {getattr(gateway_pb2, f"ROLE_{role.upper()}"): role for role in ROLES}
_SERVER_FAULTS = frozenset({Reason.INTERNAL, Reason.UNAVAILABLE})
MAX_DECODED_IDS = 1 << 18
"""They are decoded on the event loop."""
MAX_TEXT_BYTES = (1 << 20) - 16
"""No reply is larger than 1 MiB; the rest is the message's own frame."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """The constants of the process."""

    definition: Definition
    token_bytes: TokenBytes
    info: tokenizer_pb2.GetTokenizerInfoResponse
    max_prompt_tokens: int


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Answers TokenizerService."""

    def __init__(
        self, frozen: Frozen, encoder: PromptEncoder, metrics: TokenizerMetrics, tracer: Tracer
    ) -> None:
        self._frozen = frozen
        self._encoder = encoder
        self._metrics = metrics
        self._tracer = tracer

    async def Encode(
        self, request: tokenizer_pb2.EncodeRequest, context: Context
    ) -> tokenizer_pb2.EncodeResponse:
        started_ns = time.perf_counter_ns()
        with self._metrics.request("Encode"), self._span(context) as span:
            encoded = await self._encode(request)
            response = tokenizer_pb2.EncodeResponse(
                num_truncated=encoded.num_truncated, num_cached=encoded.num_cached
            )
            response.ids.extend(encoded.ids)
            for start, end in encoded.offsets or ():
                response.offsets.extend((start, end))
            elapsed_ns = time.perf_counter_ns() - started_ns
            response.encode_us = elapsed_ns // 1000
            self._note(span, encoded, elapsed_ns / 1e9)
        return response

    async def Decode(
        self, request: tokenizer_pb2.DecodeRequest, context: Context
    ) -> tokenizer_pb2.DecodeResponse:
        with self._metrics.request("Decode"):
            self._check_ids(request.ids)
            text = self._frozen.token_bytes.decode(request.ids, request.skip_special_tokens)
            if (size := num_bytes(text)) > MAX_TEXT_BYTES:
                raise _too_long(f"the text has {size} bytes; the limit is {MAX_TEXT_BYTES}")
            return tokenizer_pb2.DecodeResponse(text=text)

    async def GetTokenizerDefinition(
        self, request: tokenizer_pb2.GetTokenizerDefinitionRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetTokenizerDefinitionResponse]:
        definition = self._frozen.definition
        with self._metrics.request("GetTokenizerDefinition"):
            for piece in definition.pieces(request.have_sha256):
                yield tokenizer_pb2.GetTokenizerDefinitionResponse(
                    sha256=definition.sha256, total_bytes=len(definition.content), content=piece
                )

    async def GetTokenizerInfo(
        self, request: tokenizer_pb2.GetTokenizerInfoRequest, context: Context
    ) -> tokenizer_pb2.GetTokenizerInfoResponse:
        with self._metrics.request("GetTokenizerInfo"):
            return self._frozen.info

    async def _encode(self, request: tokenizer_pb2.EncodeRequest) -> EncodedPrompt:
        limit = Limit(self._max_tokens(request.max_tokens), _side(request.truncation_side))
        is_continuation = request.HasField("continuation")
        if request.WhichOneof("prompt") == "text":
            if is_continuation:
                raise invalid_field("continuation", "needs a conversation or messages_json")
            text = check_text(request.text)
            return await self._encoder.encode_text(text, limit, wants_offsets=request.return_offsets)
        conversation = _conversation(request, is_continuation)
        if not is_continuation:
            return await self._encoder.encode_conversation(
                conversation, limit, wants_offsets=request.return_offsets
            )
        if request.return_offsets:
            raise MeshError(Reason.NOT_SUPPORTED, "a continuation has no offsets", field="return_offsets")
        tail_ids = tuple(request.continuation.tail_ids)
        check_tail(tail_ids, self._frozen.token_bytes.size)
        return await self._encoder.encode_continuation(conversation, tail_ids, limit)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if len(ids) > MAX_DECODED_IDS:
            raise _too_long(f"there are {len(ids)} ids; the limit is {MAX_DECODED_IDS}")
        size = self._frozen.token_bytes.size
        for index, token_id in enumerate(ids):
            if token_id >= size:
                raise invalid_field(f"ids[{index}]", f"is {token_id}; the vocabulary has {size} ids")

    def _max_tokens(self, asked: int) -> int:
        """A request may ask for less than the process allows, never for more."""
        return min(asked or self._frozen.max_prompt_tokens, self._frozen.max_prompt_tokens)

    @contextmanager
    def _span(self, context: Context) -> Iterator[Span]:
        parent = context_from(traceparent_in(context.invocation_metadata()))
        with self._tracer.start_as_current_span(
            "encode", parent, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except MeshError as error:
                span.set_attribute("error.type", error.reason.value)
                if error.reason in _SERVER_FAULTS:
                    span.set_status(Status(StatusCode.ERROR, error.reason.value))
                raise

    def _note(self, span: Span, encoded: EncodedPrompt, elapsed_s: float) -> None:
        span.set_attribute("gen_ai.usage.input_tokens", len(encoded.ids))
        span.set_attribute("pagemesh.cached_tokens", encoded.num_cached)
        self._metrics.encode_seconds.observe(elapsed_s)
        self._metrics.encoded_tokens.inc(len(encoded.ids))
        self._metrics.cached_tokens.inc(encoded.num_cached)


def _too_long(message: str) -> MeshError:
    return MeshError(Reason.TOO_LONG, message, field="ids")


def _side(value: int) -> Side:
    side = _SIDES.get(value)
    if side is None and value == gateway_pb2.TRUNCATION_SIDE_KEEP_IMPORTANT:
        raise MeshError(Reason.NOT_SUPPORTED, "keep-important is not supported", field="truncation_side")
    if side is None:
        raise invalid_field("truncation_side", f"{value} is no side")
    return side


def _conversation(request: tokenizer_pb2.EncodeRequest, is_continuation: bool) -> Conversation:
    kind = request.WhichOneof("prompt")
    if kind == "messages_json":
        turns = parse_messages(request.messages_json)
        return check_turns(turns, "messages_json", is_continuation=is_continuation)
    if kind != "conversation":
        raise invalid_field("prompt", "is not set")
    segments = request.conversation.segments
    for index, segment in enumerate(segments):
        if segment.HasField("weight"):
            check_weight(index, segment.weight)
    turns = [Turn(_ROLES.get(segment.role, ""), segment.content) for segment in segments]
    return check_turns(turns, "conversation.segments", is_continuation=is_continuation)
