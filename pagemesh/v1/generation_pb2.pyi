from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_REALTIME: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_RUN_TIME: _ClassVar[FinishReason]

class ExactnessTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXACTNESS_TIER_UNSPECIFIED: _ClassVar[ExactnessTier]
    EXACTNESS_TIER_BIT_IDENTICAL: _ClassVar[ExactnessTier]
    EXACTNESS_TIER_SAME_TOKENS: _ClassVar[ExactnessTier]
    EXACTNESS_TIER_CONTINUED: _ClassVar[ExactnessTier]

class CachePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_POLICY_UNSPECIFIED: _ClassVar[CachePolicy]
    CACHE_POLICY_USE: _ClassVar[CachePolicy]
    CACHE_POLICY_READ_ONLY: _ClassVar[CachePolicy]
    CACHE_POLICY_BYPASS: _ClassVar[CachePolicy]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_UNDECODABLE: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_SUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_MODEL: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_SESSION_VERSION: _ClassVar[ErrorReason]
    ERROR_REASON_TURN_RUNNING: _ClassVar[ErrorReason]
    ERROR_REASON_SUPERSEDED: _ClassVar[ErrorReason]
    ERROR_REASON_RESUME_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_WAIT: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_CRASH_LIMIT: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_LOGITS: _ClassVar[ErrorReason]
    ERROR_REASON_SLOW_READER: _ClassVar[ErrorReason]
    ERROR_REASON_QUOTA: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_TEMPLATE: _ClassVar[ErrorReason]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_REALTIME: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_RUN_TIME: FinishReason
EXACTNESS_TIER_UNSPECIFIED: ExactnessTier
EXACTNESS_TIER_BIT_IDENTICAL: ExactnessTier
EXACTNESS_TIER_SAME_TOKENS: ExactnessTier
EXACTNESS_TIER_CONTINUED: ExactnessTier
CACHE_POLICY_UNSPECIFIED: CachePolicy
CACHE_POLICY_USE: CachePolicy
CACHE_POLICY_READ_ONLY: CachePolicy
CACHE_POLICY_BYPASS: CachePolicy
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_UNDECODABLE: ErrorReason
ERROR_REASON_TOO_LONG: ErrorReason
ERROR_REASON_NOT_SUPPORTED: ErrorReason
ERROR_REASON_UNKNOWN_MODEL: ErrorReason
ERROR_REASON_UNKNOWN_SESSION: ErrorReason
ERROR_REASON_SESSION_VERSION: ErrorReason
ERROR_REASON_TURN_RUNNING: ErrorReason
ERROR_REASON_SUPERSEDED: ErrorReason
ERROR_REASON_RESUME_MISMATCH: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_QUEUE_WAIT: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_UNAVAILABLE: ErrorReason
ERROR_REASON_CRASH_LIMIT: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_BAD_LOGITS: ErrorReason
ERROR_REASON_SLOW_READER: ErrorReason
ERROR_REASON_QUOTA: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_TEMPLATE: ErrorReason

class TokenBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos", "logit_bias", "logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    ignore_eos: bool
    logit_bias: _containers.RepeatedCompositeFieldContainer[TokenBias]
    logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., logit_bias: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class OutputLogprobs(_message.Message):
    __slots__ = ("chosen", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: TokenLogprob
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, chosen: _Optional[_Union[TokenLogprob, _Mapping]] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("model_revision", "executor", "dtype", "kv_dtype", "kernel_path", "device", "library_versions", "flags")
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    model_revision: str
    executor: str
    dtype: str
    kv_dtype: str
    kernel_path: str
    device: str
    library_versions: _containers.RepeatedScalarFieldContainer[str]
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model_revision: _Optional[str] = ..., executor: _Optional[str] = ..., dtype: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., kernel_path: _Optional[str] = ..., device: _Optional[str] = ..., library_versions: _Optional[_Iterable[str]] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...

class HopTimes(_message.Message):
    __slots__ = ("receive_ms", "encode_ms", "queue_ms", "dispatch_ms", "prefill_ms", "decode_ms", "detokenize_ms", "deliver_ms")
    RECEIVE_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_MS_FIELD_NUMBER: _ClassVar[int]
    receive_ms: float
    encode_ms: float
    queue_ms: float
    dispatch_ms: float
    prefill_ms: float
    decode_ms: float
    detokenize_ms: float
    deliver_ms: float
    def __init__(self, receive_ms: _Optional[float] = ..., encode_ms: _Optional[float] = ..., queue_ms: _Optional[float] = ..., dispatch_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., detokenize_ms: _Optional[float] = ..., deliver_ms: _Optional[float] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("hops", "elapsed_ms", "ttft_ms", "queue_reason", "prompt_tokens", "cached_tokens", "computed_tokens", "recomputed_tokens", "output_tokens", "discarded_tokens", "preemptions", "moves", "stale_tokens", "engine_id", "system_fingerprint", "trace_id", "tier", "history_saved", "session_mode", "truncated_tokens")
    HOPS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    STALE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    HISTORY_SAVED_FIELD_NUMBER: _ClassVar[int]
    SESSION_MODE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    hops: HopTimes
    elapsed_ms: float
    ttft_ms: float
    queue_reason: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    output_tokens: int
    discarded_tokens: int
    preemptions: int
    moves: int
    stale_tokens: int
    engine_id: str
    system_fingerprint: str
    trace_id: str
    tier: ExactnessTier
    history_saved: bool
    session_mode: str
    truncated_tokens: int
    def __init__(self, hops: _Optional[_Union[HopTimes, _Mapping]] = ..., elapsed_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., queue_reason: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., discarded_tokens: _Optional[int] = ..., preemptions: _Optional[int] = ..., moves: _Optional[int] = ..., stale_tokens: _Optional[int] = ..., engine_id: _Optional[str] = ..., system_fingerprint: _Optional[str] = ..., trace_id: _Optional[str] = ..., tier: _Optional[_Union[ExactnessTier, str]] = ..., history_saved: _Optional[bool] = ..., session_mode: _Optional[str] = ..., truncated_tokens: _Optional[int] = ...) -> None: ...
