from pagemesh.v1 import generation_pb2 as _generation_pb2
from pagemesh.v1 import scheduler_pb2 as _scheduler_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_REFUSAL_UNSPECIFIED: _ClassVar[RunRefusal]
    RUN_REFUSAL_WRONG_BOOT: _ClassVar[RunRefusal]
    RUN_REFUSAL_DRAINING: _ClassVar[RunRefusal]
    RUN_REFUSAL_NO_ROOM: _ClassVar[RunRefusal]
    RUN_REFUSAL_STALE: _ClassVar[RunRefusal]
    RUN_REFUSAL_INVALID: _ClassVar[RunRefusal]

class ReturnReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETURN_REASON_UNSPECIFIED: _ClassVar[ReturnReason]
    RETURN_REASON_NO_STEP: _ClassVar[ReturnReason]
    RETURN_REASON_SUSPECT: _ClassVar[ReturnReason]
    RETURN_REASON_DRAINING: _ClassVar[ReturnReason]

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_STOP: _ClassVar[EndReason]
    END_REASON_LENGTH: _ClassVar[EndReason]
    END_REASON_CANCELLED: _ClassVar[EndReason]
    END_REASON_BAD_LOGITS: _ClassVar[EndReason]
    END_REASON_DEADLINE: _ClassVar[EndReason]

class TicketOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TICKET_OUTCOME_UNSPECIFIED: _ClassVar[TicketOutcome]
    TICKET_OUTCOME_ADMITTED: _ClassVar[TicketOutcome]
    TICKET_OUTCOME_REFUSED: _ClassVar[TicketOutcome]
    TICKET_OUTCOME_ENDED: _ClassVar[TicketOutcome]
RUN_REFUSAL_UNSPECIFIED: RunRefusal
RUN_REFUSAL_WRONG_BOOT: RunRefusal
RUN_REFUSAL_DRAINING: RunRefusal
RUN_REFUSAL_NO_ROOM: RunRefusal
RUN_REFUSAL_STALE: RunRefusal
RUN_REFUSAL_INVALID: RunRefusal
RETURN_REASON_UNSPECIFIED: ReturnReason
RETURN_REASON_NO_STEP: ReturnReason
RETURN_REASON_SUSPECT: ReturnReason
RETURN_REASON_DRAINING: ReturnReason
END_REASON_UNSPECIFIED: EndReason
END_REASON_STOP: EndReason
END_REASON_LENGTH: EndReason
END_REASON_CANCELLED: EndReason
END_REASON_BAD_LOGITS: EndReason
END_REASON_DEADLINE: EndReason
TICKET_OUTCOME_UNSPECIFIED: TicketOutcome
TICKET_OUTCOME_ADMITTED: TicketOutcome
TICKET_OUTCOME_REFUSED: TicketOutcome
TICKET_OUTCOME_ENDED: TicketOutcome

class EngineInfo(_message.Message):
    __slots__ = ("engine_id", "boot_id", "address", "model", "fingerprint", "fingerprint_hash", "row_invariant", "tier", "block_size", "max_model_len", "max_pool_tokens", "max_sequences", "max_batch_tokens", "vocab_size")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_HASH_FIELD_NUMBER: _ClassVar[int]
    ROW_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    boot_id: str
    address: str
    model: str
    fingerprint: _generation_pb2.Fingerprint
    fingerprint_hash: str
    row_invariant: bool
    tier: _generation_pb2.ExactnessTier
    block_size: int
    max_model_len: int
    max_pool_tokens: int
    max_sequences: int
    max_batch_tokens: int
    vocab_size: int
    def __init__(self, engine_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[_Union[_generation_pb2.Fingerprint, _Mapping]] = ..., fingerprint_hash: _Optional[str] = ..., row_invariant: _Optional[bool] = ..., tier: _Optional[_Union[_generation_pb2.ExactnessTier, str]] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_pool_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class RunHello(_message.Message):
    __slots__ = ("gateway_id", "boot_id")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    boot_id: str
    def __init__(self, gateway_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("tenant_key", "request_id", "choice_index")
    TENANT_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    tenant_key: bytes
    request_id: str
    choice_index: int
    def __init__(self, tenant_key: _Optional[bytes] = ..., request_id: _Optional[str] = ..., choice_index: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("client_attempt", "gateway_attempt")
    CLIENT_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    client_attempt: int
    gateway_attempt: int
    def __init__(self, client_attempt: _Optional[int] = ..., gateway_attempt: _Optional[int] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("session_key", "ttl_s")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    session_key: bytes
    ttl_s: int
    def __init__(self, session_key: _Optional[bytes] = ..., ttl_s: _Optional[int] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("handle", "identity", "attempt", "ids", "num_prompt_tokens", "max_output_tokens", "sampling", "seed", "stop_ids", "priority", "age_us", "time_left_us", "cache_salt", "cache_policy", "retention", "ticket", "traceparent", "constraint_json", "is_suspect")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_US_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CACHE_POLICY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_JSON_FIELD_NUMBER: _ClassVar[int]
    IS_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    identity: Identity
    attempt: Attempt
    ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    max_output_tokens: int
    sampling: _generation_pb2.SamplingParams
    seed: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: _generation_pb2.Priority
    age_us: int
    time_left_us: int
    cache_salt: bytes
    cache_policy: _generation_pb2.CachePolicy
    retention: Retention
    ticket: _scheduler_pb2.Ticket
    traceparent: str
    constraint_json: str
    is_suspect: bool
    def __init__(self, handle: _Optional[int] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., attempt: _Optional[_Union[Attempt, _Mapping]] = ..., ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., age_us: _Optional[int] = ..., time_left_us: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., cache_policy: _Optional[_Union[_generation_pb2.CachePolicy, str]] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., ticket: _Optional[_Union[_scheduler_pb2.Ticket, _Mapping]] = ..., traceparent: _Optional[str] = ..., constraint_json: _Optional[str] = ..., is_suspect: _Optional[bool] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class ReleaseRetention(_message.Message):
    __slots__ = ("session_key",)
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    session_key: bytes
    def __init__(self, session_key: _Optional[bytes] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("hello", "admit", "cancel", "release")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    hello: RunHello
    admit: _containers.RepeatedCompositeFieldContainer[Admit]
    cancel: _containers.RepeatedCompositeFieldContainer[Cancel]
    release: _containers.RepeatedCompositeFieldContainer[ReleaseRetention]
    def __init__(self, hello: _Optional[_Union[RunHello, _Mapping]] = ..., admit: _Optional[_Iterable[_Union[Admit, _Mapping]]] = ..., cancel: _Optional[_Iterable[_Union[Cancel, _Mapping]]] = ..., release: _Optional[_Iterable[_Union[ReleaseRetention, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("handles", "attempts", "first_output_indexes", "num_ids", "ids", "num_logprobs", "logprob_ids", "logprobs", "step_number", "step_us", "device_us")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    NUM_IDS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    first_output_indexes: _containers.RepeatedScalarFieldContainer[int]
    num_ids: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: _containers.RepeatedScalarFieldContainer[int]
    logprob_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    step_number: int
    step_us: int
    device_us: int
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., first_output_indexes: _Optional[_Iterable[int]] = ..., num_ids: _Optional[_Iterable[int]] = ..., ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[_Iterable[int]] = ..., logprob_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., step_number: _Optional[int] = ..., step_us: _Optional[int] = ..., device_us: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("handle", "num_cached_tokens", "wait_us", "prefill_us")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    handle: int
    num_cached_tokens: int
    wait_us: int
    prefill_us: int
    def __init__(self, handle: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., wait_us: _Optional[int] = ..., prefill_us: _Optional[int] = ...) -> None: ...

class AdmitRefused(_message.Message):
    __slots__ = ("handle", "refusal", "detail")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    refusal: RunRefusal
    detail: str
    def __init__(self, handle: _Optional[int] = ..., refusal: _Optional[_Union[RunRefusal, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("num_cached_tokens", "num_computed_tokens", "num_recomputed_tokens", "num_preemptions")
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    num_cached_tokens: int
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    def __init__(self, num_cached_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_recomputed_tokens: _Optional[int] = ..., num_preemptions: _Optional[int] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("handle", "reason", "counts")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: ReturnReason
    counts: Counts
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[ReturnReason, str]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("handle", "reason", "counts")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: EndReason
    counts: Counts
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[_Union[EndReason, str]] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("hello", "refused", "progress", "step", "returned", "ended")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    hello: EngineInfo
    refused: _containers.RepeatedCompositeFieldContainer[AdmitRefused]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    step: Step
    returned: _containers.RepeatedCompositeFieldContainer[Returned]
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    def __init__(self, hello: _Optional[_Union[EngineInfo, _Mapping]] = ..., refused: _Optional[_Iterable[_Union[AdmitRefused, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., returned: _Optional[_Iterable[_Union[Returned, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ...) -> None: ...

class WatchHello(_message.Message):
    __slots__ = ("scheduler_id", "boot_id")
    SCHEDULER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    scheduler_id: str
    boot_id: str
    def __init__(self, scheduler_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class WaitingWork(_message.Message):
    __slots__ = ("priority", "num_sequences", "num_tokens")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    priority: _generation_pb2.Priority
    num_sequences: int
    num_tokens: int
    def __init__(self, priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("hello", "waiting", "has_waiting")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    HAS_WAITING_FIELD_NUMBER: _ClassVar[int]
    hello: WatchHello
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingWork]
    has_waiting: bool
    def __init__(self, hello: _Optional[_Union[WatchHello, _Mapping]] = ..., waiting: _Optional[_Iterable[_Union[WaitingWork, _Mapping]]] = ..., has_waiting: _Optional[bool] = ...) -> None: ...

class ClassRoom(_message.Message):
    __slots__ = ("priority", "num_sequences", "num_tokens")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    priority: _generation_pb2.Priority
    num_sequences: int
    num_tokens: int
    def __init__(self, priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class TicketNews(_message.Message):
    __slots__ = ("number", "outcome")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    number: int
    outcome: TicketOutcome
    def __init__(self, number: _Optional[int] = ..., outcome: _Optional[_Union[TicketOutcome, str]] = ...) -> None: ...

class CacheChanges(_message.Message):
    __slots__ = ("added", "removed", "is_snapshot")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    added: bytes
    removed: bytes
    is_snapshot: bool
    def __init__(self, added: _Optional[bytes] = ..., removed: _Optional[bytes] = ..., is_snapshot: _Optional[bool] = ...) -> None: ...

class EngineReport(_message.Message):
    __slots__ = ("room", "tickets", "num_running", "num_waiting", "step_us", "is_draining", "cache")
    ROOM_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    room: _containers.RepeatedCompositeFieldContainer[ClassRoom]
    tickets: _containers.RepeatedCompositeFieldContainer[TicketNews]
    num_running: int
    num_waiting: int
    step_us: int
    is_draining: bool
    cache: CacheChanges
    def __init__(self, room: _Optional[_Iterable[_Union[ClassRoom, _Mapping]]] = ..., tickets: _Optional[_Iterable[_Union[TicketNews, _Mapping]]] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., step_us: _Optional[int] = ..., is_draining: _Optional[bool] = ..., cache: _Optional[_Union[CacheChanges, _Mapping]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: EngineInfo
    report: EngineReport
    def __init__(self, hello: _Optional[_Union[EngineInfo, _Mapping]] = ..., report: _Optional[_Union[EngineReport, _Mapping]] = ...) -> None: ...

class GetEngineInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineInfoResponse(_message.Message):
    __slots__ = ("info", "is_draining", "num_running", "num_waiting")
    INFO_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    info: EngineInfo
    is_draining: bool
    num_running: int
    num_waiting: int
    def __init__(self, info: _Optional[_Union[EngineInfo, _Mapping]] = ..., is_draining: _Optional[bool] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ...) -> None: ...
