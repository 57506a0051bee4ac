"""From a prompt to its ids: what the tokenizer is asked, and what is decided on lengths before and after it.

It calls nobody; it knows no sessions but the history's ids.
"""

import json
from collections.abc import Sequence
from typing import cast

from pagemesh.v1 import gateway_pb2, tokenizer_pb2
from services.contract.errors import MeshError, Reason, invalid_field
from services.gateway.spec.generation_spec import (
    ConversationPrompt,
    GenerationSpec,
    MessagesPrompt,
    Prompt,
    Role,
    TextPrompt,
    TruncationSide,
)

MAX_TAIL_IDS = 16


def encode_request(prompt: Prompt) -> tokenizer_pb2.EncodeRequest:
    """The tokenizer's words for a prompt that is not ids yet."""
    match prompt:
        case TextPrompt(text):
            return tokenizer_pb2.EncodeRequest(text=text)
        case MessagesPrompt(json):
            return tokenizer_pb2.EncodeRequest(messages_json=json)
        case ConversationPrompt(segments):
            turns = [
                gateway_pb2.Segment(
                    role=cast(gateway_pb2.Role, int(segment.role)),
                    content=segment.content,
                    weight=segment.weight,
                )
                for segment in segments
            ]
            conversation = gateway_pb2.Conversation(segments=turns)
            return tokenizer_pb2.EncodeRequest(conversation=conversation)
    raise AssertionError(f"a prompt of ids is not encoded: {type(prompt).__name__}")


def continue_history(request: tokenizer_pb2.EncodeRequest, history: Sequence[int]) -> None:
    """Asks only for the ids that a session's next turn adds."""
    request.continuation.tail_ids.extend(history[-MAX_TAIL_IDS:])


def truncate_request(request: tokenizer_pb2.EncodeRequest, spec: GenerationSpec, max_ids: int) -> None:
    """Asks for the truncation that the caller wants."""
    request.truncation_side = cast(gateway_pb2.TruncationSide, int(spec.truncation.side))
    request.max_tokens = max_ids


def truncate_ids(
    ids: Sequence[int], side: TruncationSide, max_ids: int, prefix_ids: Sequence[int]
) -> tuple[int, ...]:
    """The same for a prompt that came as ids: what the post-processor puts in front stays."""
    if len(ids) <= max_ids:
        return tuple(ids)
    if side is TruncationSide.RIGHT:
        return tuple(ids[:max_ids])
    num_prefix = len(prefix_ids) if tuple(ids[: len(prefix_ids)]) == tuple(prefix_ids) else 0
    num_prefix = min(num_prefix, max_ids)
    num_rest = max_ids - num_prefix
    return (*ids[:num_prefix], *ids[len(ids) - num_rest :])


def prompt_limit(spec: GenerationSpec, model_limit: int, default_max_tokens: int) -> int:
    """Ids that a truncated prompt may have: what the caller says, within what the output leaves."""
    max_tokens = spec.max_tokens if spec.max_tokens is not None else min(default_max_tokens, model_limit // 2)
    left = model_limit - max_tokens
    if left < 1:
        message = f"max_tokens is {max_tokens}; the limit for prompt and output together is {model_limit}"
        raise MeshError(Reason.TOO_LONG, message, field="max_tokens")
    return min(left, spec.truncation.max_prompt_tokens or left)


def check_text_size(prompt: Prompt, spec: GenerationSpec, model_limit: int, longest_token_bytes: int) -> None:
    """Text that cannot fit however it is encoded is refused before it costs anything. Raises MeshError."""
    if spec.truncation.side is not TruncationSide.NONE or not longest_token_bytes:
        return
    num_bytes = _num_bytes(prompt)
    max_bytes = model_limit * longest_token_bytes
    if num_bytes > max_bytes:
        message = f"the prompt has {num_bytes} bytes of text; {model_limit} tokens have at most {max_bytes}"
        raise MeshError(Reason.TOO_LONG, message, field="prompt")


def check_turn_truncation(spec: GenerationSpec) -> None:
    """A history is never cut silently. Raises MeshError."""
    if spec.session is not None and spec.truncation.side is not TruncationSide.NONE:
        raise invalid_field("truncation.side", "a session's turn is not truncated")


def check_whole_conversation(prompt: Prompt, spec: GenerationSpec) -> None:
    """Under a template that rewrites earlier turns, a session's next turn brings all of them.

    A prompt without any earlier answer is the new turn only; answered as it stands it would forget the rest.
    Raises MeshError.
    """
    if spec.session is not None and spec.session.keep_output_tokens is not None:
        message = "this model's template rewrites earlier turns: the conversation sent says what is kept"
        raise invalid_field("session.keep_output_tokens", message)
    if not _has_answer(prompt):
        message = "this model's template rewrites earlier turns: every turn sends the whole conversation"
        raise invalid_field(prompt_field(prompt), message)


def cannot_append(prompt: Prompt) -> MeshError:
    """The tokenizer has no way to write these turns behind an answer."""
    message = "this model's template cannot append these turns to a session"
    return MeshError(Reason.NOT_SUPPORTED, message, field=prompt_field(prompt))


def prompt_field(prompt: Prompt) -> str:
    """Path of the field that holds a turn's messages."""
    return "messages_json" if isinstance(prompt, MessagesPrompt) else "conversation.segments"


def _has_answer(prompt: Prompt) -> bool:
    if isinstance(prompt, ConversationPrompt):
        return any(segment.role is Role.ASSISTANT for segment in prompt.segments)
    assert isinstance(prompt, MessagesPrompt), type(prompt)
    try:
        messages = json.loads(prompt.json)
    except (ValueError, RecursionError):
        return True  # no JSON: the tokenizer says what is wrong with it
    if not isinstance(messages, list):
        return True
    return any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _num_bytes(prompt: Prompt) -> int:
    match prompt:
        case TextPrompt(text):
            return len(text.encode())
        case ConversationPrompt(segments):
            return sum(len(segment.content.encode()) for segment in segments)
    # Messages are JSON: escapes and keys are bytes of the request that are not in the text.
    return 0
