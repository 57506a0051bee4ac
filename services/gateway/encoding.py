"""The encode step: a prompt, or a session's next turn, becomes ids with the vocabulary they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.v1 import tokenizer_pb2
from services.chassis.telemetry import TRACEPARENT
from services.contract.errors import MeshError, Reason, invalid_field
from services.gateway.mesh import Mesh, Route
from services.gateway.peers.tokenizer_client import Vocabulary
from services.gateway.prompt_encoding import (
    cannot_append,
    check_text_size,
    check_whole_conversation,
    continue_history,
    encode_request,
    prompt_limit,
    truncate_ids,
    truncate_request,
)
from services.gateway.spec.generation_spec import GenerationSpec, IdsPrompt, TruncationSide


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Ids of the whole prompt, a session's history among them."""

    ids: tuple[int, ...]
    num_truncated: int
    vocabulary: Vocabulary
    session_mode: str
    """"append" or "rerender"; empty without a session."""


async def encode_prompt(
    mesh: Mesh,
    route: Route,
    spec: GenerationSpec,
    history: Sequence[int] = (),
    *,
    deadline_s: float | None,
    traceparent: str,
) -> EncodedPrompt:
    """Where the template only appends, history is the session's ids and the prompt the new turns; else the
    prompt is the whole conversation and history says only that there is one.

    deadline_s is the caller's. Raises MeshError: TOO_LONG, TEMPLATE, INVALID_FIELD, NOT_SUPPORTED or
    UNAVAILABLE.
    """
    mode = _session_mode(route, spec)
    if spec.resume is not None:
        return EncodedPrompt(spec.resume.prompt_ids, 0, route.vocabulary, mode)
    default_max_tokens = mesh.settings.default_max_tokens
    is_truncated = spec.truncation.side is not TruncationSide.NONE
    max_ids = prompt_limit(spec, route.max_tokens, default_max_tokens) if is_truncated else 0
    if isinstance(spec.prompt, IdsPrompt):
        return _given_ids(spec.prompt.ids, route, spec, max_ids)
    longest_token_bytes = route.vocabulary.info.longest_token_bytes
    check_text_size(spec.prompt, spec, route.max_tokens, longest_token_bytes)
    request = encode_request(spec.prompt)
    kept_history = history if mode == "append" else ()
    if kept_history:
        continue_history(request, kept_history)
    elif history:
        check_whole_conversation(spec.prompt, spec)
    elif is_truncated:
        truncate_request(request, spec, max_ids)
    metadata = ((TRACEPARENT, traceparent),)
    try:
        encoded = await mesh.tokenizers.encode(
            route.model, request, mesh.encode_until_s(deadline_s), metadata
        )
    except MeshError as error:
        if error.reason is Reason.NOT_SUPPORTED and error.field == "continuation":
            raise cannot_append(spec.prompt) from error
        raise
    ids = (*kept_history, *encoded.ids)
    if not ids:
        raise invalid_field("prompt", "the prompt has no tokens")
    return EncodedPrompt(ids, encoded.num_truncated, encoded.vocabulary, mode)


def _given_ids(ids: Sequence[int], route: Route, spec: GenerationSpec, max_ids: int) -> EncodedPrompt:
    kept = tuple(ids)
    if max_ids:
        kept = truncate_ids(ids, spec.truncation.side, max_ids, route.vocabulary.info.prefix_ids)
    return EncodedPrompt(kept, len(ids) - len(kept), route.vocabulary, "")


def _session_mode(route: Route, spec: GenerationSpec) -> str:
    if spec.session is None:
        return ""
    mode = route.vocabulary.info.session_mode
    return "append" if mode == tokenizer_pb2.SESSION_MODE_APPEND else "rerender"
