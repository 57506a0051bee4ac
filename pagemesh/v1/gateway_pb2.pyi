import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from pagemesh.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class TruncationSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_SIDE_UNSPECIFIED: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_LEFT: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_RIGHT: _ClassVar[TruncationSide]
    TRUNCATION_SIDE_KEEP_IMPORTANT: _ClassVar[TruncationSide]

class CacheScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_SCOPE_UNSPECIFIED: _ClassVar[CacheScope]
    CACHE_SCOPE_TENANT: _ClassVar[CacheScope]
    CACHE_SCOPE_USER: _ClassVar[CacheScope]
    CACHE_SCOPE_SESSION: _ClassVar[CacheScope]
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
TRUNCATION_SIDE_UNSPECIFIED: TruncationSide
TRUNCATION_SIDE_LEFT: TruncationSide
TRUNCATION_SIDE_RIGHT: TruncationSide
TRUNCATION_SIDE_KEEP_IMPORTANT: TruncationSide
CACHE_SCOPE_UNSPECIFIED: CacheScope
CACHE_SCOPE_TENANT: CacheScope
CACHE_SCOPE_USER: CacheScope
CACHE_SCOPE_SESSION: CacheScope

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("role", "content", "weight")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    role: Role
    content: str
    weight: float
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., content: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Truncation(_message.Message):
    __slots__ = ("side", "max_prompt_tokens")
    SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    side: TruncationSide
    max_prompt_tokens: int
    def __init__(self, side: _Optional[_Union[TruncationSide, str]] = ..., max_prompt_tokens: _Optional[int] = ...) -> None: ...

class StopConditions(_message.Message):
    __slots__ = ("texts", "ids", "include_stop")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop: bool
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., ids: _Optional[_Iterable[int]] = ..., include_stop: _Optional[bool] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "regex", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ...) -> None: ...

class CacheOptions(_message.Message):
    __slots__ = ("policy", "scope")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    policy: _generation_pb2.CachePolicy
    scope: CacheScope
    def __init__(self, policy: _Optional[_Union[_generation_pb2.CachePolicy, str]] = ..., scope: _Optional[_Union[CacheScope, str]] = ...) -> None: ...

class StreamOptions(_message.Message):
    __slots__ = ("sentence_pause_ms",)
    SENTENCE_PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    sentence_pause_ms: int
    def __init__(self, sentence_pause_ms: _Optional[int] = ...) -> None: ...

class SessionTurn(_message.Message):
    __slots__ = ("id", "user_id", "expect_version", "keep_output_tokens")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECT_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    id: str
    user_id: str
    expect_version: int
    keep_output_tokens: int
    def __init__(self, id: _Optional[str] = ..., user_id: _Optional[str] = ..., expect_version: _Optional[int] = ..., keep_output_tokens: _Optional[int] = ...) -> None: ...

class ResumeChoice(_message.Message):
    __slots__ = ("output_ids",)
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    output_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, output_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("next_seq_id", "prompt_ids", "choices", "resume_token")
    NEXT_SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    next_seq_id: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    choices: _containers.RepeatedCompositeFieldContainer[ResumeChoice]
    resume_token: bytes
    def __init__(self, next_seq_id: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., choices: _Optional[_Iterable[_Union[ResumeChoice, _Mapping]]] = ..., resume_token: _Optional[bytes] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "client_attempt", "model", "text", "ids", "conversation", "messages_json", "truncation", "n", "max_tokens", "sampling", "stop", "skip_special_tokens", "constraint", "cache", "stream", "session", "priority", "max_queue_wait_ms", "max_run_time_ms", "seed", "resume")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    client_attempt: int
    model: str
    text: str
    ids: TokenIds
    conversation: Conversation
    messages_json: str
    truncation: Truncation
    n: int
    max_tokens: int
    sampling: _generation_pb2.SamplingParams
    stop: StopConditions
    skip_special_tokens: bool
    constraint: Constraint
    cache: CacheOptions
    stream: StreamOptions
    session: SessionTurn
    priority: _generation_pb2.Priority
    max_queue_wait_ms: int
    max_run_time_ms: int
    seed: int
    resume: Resume
    def __init__(self, request_id: _Optional[str] = ..., client_attempt: _Optional[int] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., ids: _Optional[_Union[TokenIds, _Mapping]] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., messages_json: _Optional[str] = ..., truncation: _Optional[_Union[Truncation, _Mapping]] = ..., n: _Optional[int] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[StopConditions, _Mapping]] = ..., skip_special_tokens: _Optional[bool] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., cache: _Optional[_Union[CacheOptions, _Mapping]] = ..., stream: _Optional[_Union[StreamOptions, _Mapping]] = ..., session: _Optional[_Union[SessionTurn, _Mapping]] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., max_queue_wait_ms: _Optional[int] = ..., max_run_time_ms: _Optional[int] = ..., seed: _Optional[int] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "seed", "resumable", "prompt_ids", "resume_token", "model_revision", "system_fingerprint", "session_version", "trace_id", "num_prompt_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SESSION_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seed: int
    resumable: bool
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    resume_token: bytes
    model_revision: str
    system_fingerprint: str
    session_version: int
    trace_id: str
    num_prompt_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., seed: _Optional[int] = ..., resumable: _Optional[bool] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., resume_token: _Optional[bytes] = ..., model_revision: _Optional[str] = ..., system_fingerprint: _Optional[str] = ..., session_version: _Optional[int] = ..., trace_id: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("choice", "first_output_index", "ids", "text", "logprobs")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    choice: int
    first_output_index: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.OutputLogprobs]
    def __init__(self, choice: _Optional[int] = ..., first_output_index: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.OutputLogprobs, _Mapping]]] = ...) -> None: ...

class ChoiceResult(_message.Message):
    __slots__ = ("choice", "finish_reason", "stop_id", "stop_text", "num_tokens", "final_text")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_TEXT_FIELD_NUMBER: _ClassVar[int]
    choice: int
    finish_reason: _generation_pb2.FinishReason
    stop_id: int
    stop_text: str
    num_tokens: int
    final_text: str
    def __init__(self, choice: _Optional[int] = ..., finish_reason: _Optional[_Union[_generation_pb2.FinishReason, str]] = ..., stop_id: _Optional[int] = ..., stop_text: _Optional[str] = ..., num_tokens: _Optional[int] = ..., final_text: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("choices", "usage", "receipt", "session_version")
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_VERSION_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedCompositeFieldContainer[ChoiceResult]
    usage: Usage
    receipt: _generation_pb2.Receipt
    session_version: int
    def __init__(self, choices: _Optional[_Iterable[_Union[ChoiceResult, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., receipt: _Optional[_Union[_generation_pb2.Receipt, _Mapping]] = ..., session_version: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("seq_id", "timestamp", "started", "token", "complete")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    timestamp: _timestamp_pb2.Timestamp
    started: Started
    token: Token
    complete: Complete
    def __init__(self, seq_id: _Optional[int] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., complete: _Optional[_Union[Complete, _Mapping]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("user_id", "model")
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    model: str
    def __init__(self, user_id: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "version", "ttl_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    version: int
    ttl_s: int
    def __init__(self, session_id: _Optional[str] = ..., version: _Optional[int] = ..., ttl_s: _Optional[int] = ...) -> None: ...

class ReleaseSessionRequest(_message.Message):
    __slots__ = ("session_id", "user_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    user_id: str
    def __init__(self, session_id: _Optional[str] = ..., user_id: _Optional[str] = ...) -> None: ...

class ReleaseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "text", "conversation", "messages_json")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    conversation: Conversation
    messages_json: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., messages_json: _Optional[str] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("num_tokens",)
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("prompt_tokens", "engine_id", "bucket_tokens", "num_ahead", "snapshot_age_ms")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    engine_id: str
    bucket_tokens: int
    num_ahead: int
    snapshot_age_ms: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., engine_id: _Optional[str] = ..., bucket_tokens: _Optional[int] = ..., num_ahead: _Optional[int] = ..., snapshot_age_ms: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "revision", "max_model_len", "num_engines", "max_choices", "vocab_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_ENGINES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    max_model_len: int
    num_engines: int
    max_choices: int
    vocab_size: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., max_model_len: _Optional[int] = ..., num_engines: _Optional[int] = ..., max_choices: _Optional[int] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...
