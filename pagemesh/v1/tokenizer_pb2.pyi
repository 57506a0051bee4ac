from pagemesh.v1 import gateway_pb2 as _gateway_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_MODE_UNSPECIFIED: _ClassVar[SessionMode]
    SESSION_MODE_APPEND: _ClassVar[SessionMode]
    SESSION_MODE_RERENDER: _ClassVar[SessionMode]
SESSION_MODE_UNSPECIFIED: SessionMode
SESSION_MODE_APPEND: SessionMode
SESSION_MODE_RERENDER: SessionMode

class Continuation(_message.Message):
    __slots__ = ("tail_ids",)
    TAIL_IDS_FIELD_NUMBER: _ClassVar[int]
    tail_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tail_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("text", "conversation", "messages_json", "continuation", "truncation_side", "max_tokens", "return_offsets")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    text: str
    conversation: _gateway_pb2.Conversation
    messages_json: str
    continuation: Continuation
    truncation_side: _gateway_pb2.TruncationSide
    max_tokens: int
    return_offsets: bool
    def __init__(self, text: _Optional[str] = ..., conversation: _Optional[_Union[_gateway_pb2.Conversation, _Mapping]] = ..., messages_json: _Optional[str] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ..., truncation_side: _Optional[_Union[_gateway_pb2.TruncationSide, str]] = ..., max_tokens: _Optional[int] = ..., return_offsets: _Optional[bool] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("ids", "offsets", "num_truncated", "num_cached", "encode_us")
    IDS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: int
    num_cached: int
    encode_us: int
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[int] = ..., num_cached: _Optional[int] = ..., encode_us: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("ids", "skip_special_tokens")
    IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetTokenizerDefinitionRequest(_message.Message):
    __slots__ = ("have_sha256",)
    HAVE_SHA256_FIELD_NUMBER: _ClassVar[int]
    have_sha256: str
    def __init__(self, have_sha256: _Optional[str] = ...) -> None: ...

class GetTokenizerDefinitionResponse(_message.Message):
    __slots__ = ("sha256", "total_bytes", "content")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    total_bytes: int
    content: bytes
    def __init__(self, sha256: _Optional[str] = ..., total_bytes: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class GetTokenizerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerInfoResponse(_message.Message):
    __slots__ = ("model", "definition_sha256", "template_sha256", "vocab_size", "eos_ids", "special_ids", "session_mode", "has_safe_seams", "prefix_ids", "longest_token_bytes", "boot_id", "max_prompt_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_SHA256_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MODE_FIELD_NUMBER: _ClassVar[int]
    HAS_SAFE_SEAMS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    definition_sha256: str
    template_sha256: str
    vocab_size: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    special_ids: _containers.RepeatedScalarFieldContainer[int]
    session_mode: SessionMode
    has_safe_seams: bool
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    longest_token_bytes: int
    boot_id: str
    max_prompt_tokens: int
    def __init__(self, model: _Optional[str] = ..., definition_sha256: _Optional[str] = ..., template_sha256: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., special_ids: _Optional[_Iterable[int]] = ..., session_mode: _Optional[_Union[SessionMode, str]] = ..., has_safe_seams: _Optional[bool] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., longest_token_bytes: _Optional[int] = ..., boot_id: _Optional[str] = ..., max_prompt_tokens: _Optional[int] = ...) -> None: ...
