"""A public message becomes a spec, or an error that names the field.

Checks what can be checked without encoding; `check_limits` does the rest once the prompt's length is known.
Field paths are those of the contract: `sampling.logit_bias[3].token_id`.
"""

import re
from typing import Protocol

from pagemesh.v1 import gateway_pb2
from services.contract.errors import MeshError, Reason, invalid_field, not_supported
from services.contract.priority import priority_of
from services.gateway.spec.field_checks import check_ids, check_name, check_number, choose
from services.gateway.spec.generation_spec import (
    CachePolicy,
    CacheScope,
    ConversationPrompt,
    GenerationSpec,
    IdsPrompt,
    MessagesPrompt,
    Prompt,
    Resume,
    Role,
    Segment,
    SessionTurn,
    Stop,
    TextPrompt,
    Truncation,
    TruncationSide,
)
from services.gateway.spec.sampling_validation import validate_sampling

MAX_STOP_TEXTS = 16
MAX_STOP_TEXT_BYTES = 256
MAX_STOP_IDS = 64
MAX_SEQ_ID = 2**63
"""A stream that goes on behind it would not get far enough to run out of numbers."""
_NO_MESSAGES = re.compile(r"\s*(\[\s*\]\s*)?")


class Limits(Protocol):
    """What the fleet offers for one model: the scheduler's ModelState."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def max_pool_tokens(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...


def check_size(num_bytes: int, max_bytes: int) -> None:
    """The transport takes a little more than the limit, so that this is said in words. Raises MeshError."""
    if num_bytes > max_bytes:
        raise MeshError(Reason.TOO_LONG, f"the request has {num_bytes} bytes; the limit is {max_bytes}")


def validate_generate(request: gateway_pb2.GenerateRequest, vocab_size: int) -> GenerationSpec:
    """Raises MeshError: INVALID_FIELD or NOT_SUPPORTED."""
    _refuse_later_features(request)
    spec = GenerationSpec(
        prompt=_prompt(request, vocab_size),
        request_id=check_name(request.request_id, "request_id"),
        client_attempt=request.client_attempt,
        model=check_name(request.model, "model"),
        truncation=_truncation(request.truncation),
        n=request.n or 1,
        max_tokens=_max_tokens(request),
        sampling=validate_sampling(request.sampling, vocab_size),
        stop=_stop(request.stop, vocab_size),
        skip_special_tokens=request.skip_special_tokens if request.HasField("skip_special_tokens") else True,
        cache_policy=choose(CachePolicy, request.cache.policy, "cache.policy", CachePolicy.USE),
        cache_scope=choose(CacheScope, request.cache.scope, "cache.scope", CacheScope.TENANT),
        session=_session(request),
        priority=priority_of(request.priority),
        max_queue_wait_s=_seconds(request.max_queue_wait_ms),
        max_run_time_s=_seconds(request.max_run_time_ms),
        seed=request.seed if request.HasField("seed") else None,
        resume=_resume(request, vocab_size),
    )
    _check_together(spec)
    return spec


def validate_count_tokens(request: gateway_pb2.CountTokensRequest) -> tuple[str, Prompt]:
    """Model name and prompt. Raises MeshError."""
    return check_name(request.model, "model"), _prompt(request, 0)


def validate_open_session(request: gateway_pb2.OpenSessionRequest) -> tuple[str, str]:
    """User id and model name. Raises MeshError."""
    return check_name(request.user_id, "user_id"), check_name(request.model, "model")


def validate_release_session(request: gateway_pb2.ReleaseSessionRequest) -> tuple[str, str]:
    """Session id and user id. Raises MeshError."""
    session_id = check_name(request.session_id, "session_id", is_required=True)
    return session_id, check_name(request.user_id, "user_id")


def check_limits(
    spec: GenerationSpec, num_prompt_tokens: int, limits: Limits, default_max_tokens: int
) -> int:
    """The output limit in force. Raises MeshError: TOO_LONG, or INVALID_FIELD for too many choices."""
    if spec.n > limits.max_sequences:
        raise invalid_field("n", f"n is at most {limits.max_sequences} for this model; given {spec.n}")
    limit = min(limits.max_model_len, limits.max_pool_tokens)
    if num_prompt_tokens >= limit:
        is_full = num_prompt_tokens == limit
        end = f"{limit}, which leaves none for the output" if is_full else str(limit)
        message = f"prompt has {num_prompt_tokens} tokens; the limit is {end}"
        raise MeshError(Reason.TOO_LONG, message, field="prompt")
    if spec.max_tokens is None:
        return min(default_max_tokens, limit - num_prompt_tokens)
    if num_prompt_tokens + spec.max_tokens > limit:
        message = (
            f"prompt has {num_prompt_tokens} tokens and max_tokens is {spec.max_tokens}; "
            f"the limit for both together is {limit}"
        )
        raise MeshError(Reason.TOO_LONG, message, field="max_tokens")
    return spec.max_tokens


def _refuse_later_features(request: gateway_pb2.GenerateRequest) -> None:
    if request.HasField("constraint"):
        raise not_supported("constraint")
    if request.stream.sentence_pause_ms:
        raise not_supported("stream.sentence_pause_ms")
    if request.truncation.side == gateway_pb2.TRUNCATION_SIDE_KEEP_IMPORTANT:
        raise not_supported("truncation.side")


def _prompt(request: gateway_pb2.GenerateRequest | gateway_pb2.CountTokensRequest, vocab_size: int) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            if not request.text:
                raise invalid_field("text", "the prompt is empty")
            return TextPrompt(request.text)
        case "conversation":
            return _conversation(request.conversation)
        case "messages_json":
            if _NO_MESSAGES.fullmatch(request.messages_json):
                raise invalid_field("messages_json", "there is no message")
            return MessagesPrompt(request.messages_json)
        case "ids":
            assert isinstance(request, gateway_pb2.GenerateRequest), request
            if not request.ids.ids:
                raise invalid_field("ids.ids", "the prompt is empty")
            return IdsPrompt(check_ids(request.ids.ids, "ids.ids", vocab_size))
    raise invalid_field("prompt", "the prompt is missing")


def _conversation(conversation: gateway_pb2.Conversation) -> ConversationPrompt:
    if not conversation.segments:
        raise invalid_field("conversation.segments", "the conversation is empty")
    segments = tuple(_segment(segment, i) for i, segment in enumerate(conversation.segments))
    if not any(segment.content for segment in segments):
        raise invalid_field("conversation.segments[0].content", "no segment has content")
    return ConversationPrompt(segments)


def _segment(segment: gateway_pb2.Segment, index: int) -> Segment:
    field = f"conversation.segments[{index}]"
    role = choose(Role, segment.role, f"{field}.role")
    if role is Role.SYSTEM and index:
        raise invalid_field(f"{field}.role", "the system segment comes first")
    weight = 1.0
    if segment.HasField("weight"):
        weight = check_number(segment.weight, f"{field}.weight", above=0.0)
    return Segment(role, segment.content, weight)


def _truncation(truncation: gateway_pb2.Truncation) -> Truncation:
    side = choose(TruncationSide, truncation.side, "truncation.side")
    return Truncation(side, truncation.max_prompt_tokens)


def _max_tokens(request: gateway_pb2.GenerateRequest) -> int | None:
    if not request.HasField("max_tokens"):
        return None
    if request.max_tokens == 0:
        raise invalid_field("max_tokens", "max_tokens is at least 1; given 0")
    return request.max_tokens


def _stop(stop: gateway_pb2.StopConditions, vocab_size: int) -> Stop:
    if len(stop.texts) > MAX_STOP_TEXTS:
        raise invalid_field("stop.texts", f"at most {MAX_STOP_TEXTS} texts; given {len(stop.texts)}")
    if len(stop.ids) > MAX_STOP_IDS:
        raise invalid_field("stop.ids", f"at most {MAX_STOP_IDS} ids; given {len(stop.ids)}")
    for i, text in enumerate(stop.texts):
        num_bytes = len(text.encode())
        if not 1 <= num_bytes <= MAX_STOP_TEXT_BYTES:
            message = f"a stop text has 1..{MAX_STOP_TEXT_BYTES} bytes; given {num_bytes}"
            raise invalid_field(f"stop.texts[{i}]", message)
        if "\0" in text:
            raise invalid_field(f"stop.texts[{i}]", "a stop text has no NUL")
    return Stop(tuple(stop.texts), check_ids(stop.ids, "stop.ids", vocab_size), stop.include_stop)


def _session(request: gateway_pb2.GenerateRequest) -> SessionTurn | None:
    if not request.HasField("session"):
        return None
    turn = request.session
    return SessionTurn(
        id=check_name(turn.id, "session.id", is_required=True),
        user_id=check_name(turn.user_id, "session.user_id"),
        expect_version=turn.expect_version if turn.HasField("expect_version") else None,
        keep_output_tokens=turn.keep_output_tokens if turn.HasField("keep_output_tokens") else None,
    )


def _resume(request: gateway_pb2.GenerateRequest, vocab_size: int) -> Resume | None:
    if not request.HasField("resume"):
        return None
    resume = request.resume
    if not resume.prompt_ids:
        raise invalid_field("resume.prompt_ids", "a resume sends the prompt ids that `started` told")
    if resume.next_seq_id > MAX_SEQ_ID:
        message = f"at most {MAX_SEQ_ID}; given {resume.next_seq_id}"
        raise invalid_field("resume.next_seq_id", message)
    if not resume.resume_token:
        raise invalid_field("resume.resume_token", "a resume sends the token that `started` told")
    output_ids = tuple(
        check_ids(choice.output_ids, f"resume.choices[{i}].output_ids", vocab_size)
        for i, choice in enumerate(resume.choices)
    )
    prompt_ids = check_ids(resume.prompt_ids, "resume.prompt_ids", vocab_size)
    return Resume(resume.next_seq_id, prompt_ids, output_ids, resume.resume_token)


def _seconds(milliseconds: int) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def _check_together(spec: GenerationSpec) -> None:
    """What fields ask of each other."""
    if spec.max_tokens is not None and spec.sampling.min_tokens > spec.max_tokens:
        message = f"min_tokens is {spec.sampling.min_tokens} and max_tokens {spec.max_tokens}"
        raise invalid_field("sampling.min_tokens", message)
    if spec.session is not None:
        _check_turn(spec)
    _check_scope(spec)
    if spec.resume is not None:
        _check_resume(spec, spec.resume)


def _check_turn(spec: GenerationSpec) -> None:
    if not isinstance(spec.prompt, ConversationPrompt | MessagesPrompt):
        field = "text" if isinstance(spec.prompt, TextPrompt) else "ids"
        raise invalid_field(field, "a session's turn is a conversation or messages_json")
    if spec.n != 1:
        raise invalid_field("n", f"a session's turn has one choice; given {spec.n}")


def _check_scope(spec: GenerationSpec) -> None:
    """A narrower scope than the caller can name would silently be the wider one."""
    if spec.cache_scope is CacheScope.SESSION and spec.session is None:
        raise invalid_field("cache.scope", "the session scope needs a session")
    if spec.cache_scope is CacheScope.USER and not (spec.session and spec.session.user_id):
        raise invalid_field("cache.scope", "the user scope needs session.user_id")


def _check_resume(spec: GenerationSpec, resume: Resume) -> None:
    if not spec.request_id:
        raise invalid_field("request_id", "a resume names the request")
    if spec.client_attempt == 0:
        raise invalid_field("client_attempt", "a resume raises client_attempt; given 0")
    if spec.seed is None:
        raise invalid_field("seed", "a resume sends the seed that `started` told")
    if len(resume.output_ids) != spec.n:
        message = f"a resume has one entry per choice, {spec.n}; given {len(resume.output_ids)}"
        raise invalid_field("resume.choices", message)
    for i, ids in enumerate(resume.output_ids):
        if spec.max_tokens is not None and len(ids) > spec.max_tokens:
            message = f"at most max_tokens, {spec.max_tokens}; given {len(ids)}"
            raise invalid_field(f"resume.choices[{i}].output_ids", message)
