"""A prompt as the tokenizer takes it, checked: raw text or turns for the template. Knows no ids."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.contract.errors import MeshError, Reason, invalid_field

ROLES = ("system", "user", "assistant", "tool")
MAX_TURNS = 4096
"""A template walks over every message, so their number has a bound of its own."""
_UNSUPPORTED_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call", "name", "audio"})


@dataclass(frozen=True, slots=True)
class Turn:
    """One message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that passed the checks, and the words to speak of them."""

    turns: tuple[Turn, ...]
    path: str
    """The request's field that holds them: "conversation.segments" or "messages_json"."""
    num_hidden: int = 0
    """Leading turns that the caller did not send (a continuation's stand-ins)."""

    def template_error(self, reason: str, index: int | None) -> MeshError:
        """The template refused message `index`."""
        if index is None or index < self.num_hidden:
            return MeshError(Reason.TEMPLATE, f"the chat template refused it: {reason}", field=self.path)
        index -= self.num_hidden
        message = f"the chat template refused message {index}: {reason}"
        return MeshError(Reason.TEMPLATE, message, field=f"{self.path}[{index}]")


def check_text(text: str) -> str:
    """A raw prompt."""
    if not text:
        raise invalid_field("text", "is empty")
    return text


def check_weight(index: int, weight: float) -> None:
    """A segment's weight."""
    if not (weight > 0 and math.isfinite(weight)):
        raise invalid_field(f"conversation.segments[{index}].weight", f"is {weight:g}; it must be above 0")


def check_turns(turns: Sequence[Turn], path: str, *, is_continuation: bool) -> Conversation:
    """Turns for the template: roles known, system first only, something said."""
    if not turns:
        raise invalid_field(path, "has no message")
    if len(turns) > MAX_TURNS:
        raise invalid_field(path, f"has {len(turns)} messages; the limit is {MAX_TURNS}")
    for index, turn in enumerate(turns):
        if turn.role not in ROLES:
            raise invalid_field(f"{path}[{index}].role", f"is not one of {', '.join(ROLES)}")
        if turn.role == "system" and (index > 0 or is_continuation):
            raise invalid_field(f"{path}[{index}].role", "system may only come first in a conversation")
    if not any(turn.content for turn in turns):
        raise invalid_field(path, "every content is empty")
    return Conversation(tuple(turns), path)


def parse_messages(text: str) -> list[Turn]:
    """OpenAI-style messages: a JSON array of {role, content}, content a string or a list of text parts."""
    field = "messages_json"
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid_field(field, "is not valid JSON") from error
    if not isinstance(messages, list):
        raise invalid_field(field, "is not a JSON array")
    return [_parse_message(message, f"{field}[{index}]") for index, message in enumerate(messages)]


def _parse_message(message: Any, field: str) -> Turn:
    if not isinstance(message, dict):
        raise invalid_field(field, "is not a JSON object")
    for key in sorted(message.keys() - {"role", "content"}):
        if key in _UNSUPPORTED_KEYS and message[key] is not None:
            raise MeshError(Reason.NOT_SUPPORTED, f"{key} is not supported", field=f"{field}.{key}")
        if key not in _UNSUPPORTED_KEYS:
            raise invalid_field(field, "has a key other than role and content")
    role = message.get("role")
    if not isinstance(role, str):
        raise invalid_field(f"{field}.role", "is not a string")
    return Turn(role, _parse_content(message.get("content"), f"{field}.content"))


def _parse_content(content: Any, field: str) -> str:
    if isinstance(content, list):
        return "".join(_parse_part(part, f"{field}[{index}]") for index, part in enumerate(content))
    return _check_characters(content, field)


def _parse_part(part: Any, field: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise MeshError(Reason.NOT_SUPPORTED, "only parts of type text are supported", field=field)
    return _check_characters(part.get("text"), f"{field}.text")


def _check_characters(text: Any, field: str) -> str:
    if not isinstance(text, str):
        raise invalid_field(field, "is not a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid_field(field, "holds half of a surrogate pair") from error
    return text
