"""Python arguments to wire messages. Leaves validation to the gateway, which names the field at fault."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypedDict, TypeGuard, Unpack

from pagemesh.v1 import gateway_pb2, generation_pb2


class Role(IntEnum):
    """Who speaks."""

    SYSTEM = gateway_pb2.ROLE_SYSTEM
    USER = gateway_pb2.ROLE_USER
    ASSISTANT = gateway_pb2.ROLE_ASSISTANT
    TOOL = gateway_pb2.ROLE_TOOL


class Priority(IntEnum):
    """Orders waiting work."""

    REALTIME = generation_pb2.PRIORITY_REALTIME
    INTERACTIVE = generation_pb2.PRIORITY_INTERACTIVE
    BATCH = generation_pb2.PRIORITY_BATCH


class CachePolicy(IntEnum):
    """How a request uses the prefix cache."""

    USE = generation_pb2.CACHE_POLICY_USE
    READ_ONLY = generation_pb2.CACHE_POLICY_READ_ONLY
    BYPASS = generation_pb2.CACHE_POLICY_BYPASS


class CacheScope(IntEnum):
    """Who may share a request's cached blocks."""

    TENANT = gateway_pb2.CACHE_SCOPE_TENANT
    USER = gateway_pb2.CACHE_SCOPE_USER
    SESSION = gateway_pb2.CACHE_SCOPE_SESSION


class TruncationSide(IntEnum):
    """Which ids go when the prompt is over the limit."""

    LEFT = gateway_pb2.TRUNCATION_SIDE_LEFT
    RIGHT = gateway_pb2.TRUNCATION_SIDE_RIGHT
    KEEP_IMPORTANT = gateway_pb2.TRUNCATION_SIDE_KEEP_IMPORTANT


@dataclass(frozen=True, slots=True)
class Segment:
    """One turn of a conversation."""

    role: Role
    content: str
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class RawText:
    """A prompt that is encoded as it stands, without the chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that the caller encoded itself."""

    ids: tuple[int, ...]


Prompt = str | RawText | TokenIds | Sequence[Segment] | Sequence[Mapping[str, object]]
"""A str is one user turn; a sequence of mappings is OpenAI-style messages."""


class Options(TypedDict, total=False):
    """Everything about a request but its prompt; what is left out is the gateway's default."""

    model: str
    request_id: str
    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool
    logit_bias: Mapping[int, float]
    logprobs: int
    seed: int
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    include_stop: bool
    skip_special_tokens: bool
    truncation_side: TruncationSide
    max_prompt_tokens: int
    cache_policy: CachePolicy
    cache_scope: CacheScope
    priority: Priority
    max_queue_wait_ms: int
    max_run_time_ms: int


_PLACES: Mapping[str, str] = {
    "model": "model",
    "request_id": "request_id",
    "n": "n",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "skip_special_tokens": "skip_special_tokens",
    "priority": "priority",
    "max_queue_wait_ms": "max_queue_wait_ms",
    "max_run_time_ms": "max_run_time_ms",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.repetition_penalty",
    "presence_penalty": "sampling.presence_penalty",
    "frequency_penalty": "sampling.frequency_penalty",
    "min_tokens": "sampling.min_tokens",
    "ignore_eos": "sampling.ignore_eos",
    "logprobs": "sampling.logprobs",
    "include_stop": "stop.include_stop",
    "truncation_side": "truncation.side",
    "max_prompt_tokens": "truncation.max_prompt_tokens",
    "cache_policy": "cache.policy",
    "cache_scope": "cache.scope",
}
"""Where an option stands in GenerateRequest."""

_LISTS = frozenset({"logit_bias", "stop", "stop_ids"})


def generate_request(prompt: Prompt, **options: Unpack[Options]) -> gateway_pb2.GenerateRequest:
    """Builds the request. Raises TypeError or ValueError, naming the option, for what no field can hold."""
    request = gateway_pb2.GenerateRequest()
    _set_prompt(request, prompt)
    for option, value in options.items():
        if option not in _LISTS:
            _set_option(request, option, value)
    for token_id, bias in options.get("logit_bias", {}).items():
        request.sampling.logit_bias.add(token_id=token_id, bias=bias)
    texts = options.get("stop", ())
    request.stop.texts.extend([texts] if isinstance(texts, str) else texts)
    request.stop.ids.extend(options.get("stop_ids", ()))
    return request


def _set_option(request: gateway_pb2.GenerateRequest, option: str, value: object) -> None:
    if option not in _PLACES:
        raise TypeError(f"there is no option {option!r}")
    message: object = request
    *parents, name = _PLACES[option].split(".")
    for parent in parents:
        message = getattr(message, parent)
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{option}: {error}") from None


def with_request_id(request: gateway_pb2.GenerateRequest) -> gateway_pb2.GenerateRequest:
    """A copy with an identity of its own, so that a second attempt is known as one."""
    named = gateway_pb2.GenerateRequest()
    named.CopyFrom(request)
    named.request_id = named.request_id or uuid.uuid4().hex
    return named


def count_tokens_request(prompt: Prompt, model: str = "") -> gateway_pb2.CountTokensRequest:
    request = gateway_pb2.CountTokensRequest(model=model)
    if isinstance(prompt, TokenIds):
        raise TypeError("token ids need no counting")
    _set_prompt(request, prompt)
    return request


def _set_prompt(
    request: gateway_pb2.GenerateRequest | gateway_pb2.CountTokensRequest, prompt: Prompt
) -> None:
    match prompt:
        case str():
            request.conversation.segments.add(role=gateway_pb2.ROLE_USER, content=prompt)
        case RawText(text):
            request.text = text
        case TokenIds(ids):
            assert isinstance(request, gateway_pb2.GenerateRequest)
            request.ids.ids.extend(ids)
            request.ids.SetInParent()
        case _ if _are_segments(prompt):
            request.conversation.CopyFrom(_conversation(prompt))
            request.conversation.SetInParent()
        case _ if _are_messages(prompt):
            request.messages_json = json.dumps(list(prompt), ensure_ascii=False)
        case _:
            raise TypeError(
                "a prompt is a str, RawText, TokenIds, or a sequence of either Segment or message dict"
            )


def _are_segments(prompt: object) -> TypeGuard[Sequence[Segment]]:
    return isinstance(prompt, Sequence) and all(isinstance(turn, Segment) for turn in prompt)


def _are_messages(prompt: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    return isinstance(prompt, Sequence) and all(isinstance(turn, Mapping) for turn in prompt)


def _conversation(segments: Sequence[Segment]) -> gateway_pb2.Conversation:
    conversation = gateway_pb2.Conversation()
    for segment in segments:
        entry = conversation.segments.add(content=segment.content)
        setattr(entry, "role", segment.role)  # noqa: B010  the stub knows only the wire's own enum
        if segment.weight is not None:
            entry.weight = segment.weight
    return conversation
