from pagemesh.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlaceRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACE_REFUSAL_UNSPECIFIED: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_QUEUE_FULL: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_QUEUE_WAIT: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_DEADLINE: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_NO_ENGINE: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_TOO_LARGE: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_INVALID: _ClassVar[PlaceRefusal]
    PLACE_REFUSAL_DRAINING: _ClassVar[PlaceRefusal]
PLACE_REFUSAL_UNSPECIFIED: PlaceRefusal
PLACE_REFUSAL_QUEUE_FULL: PlaceRefusal
PLACE_REFUSAL_QUEUE_WAIT: PlaceRefusal
PLACE_REFUSAL_DEADLINE: PlaceRefusal
PLACE_REFUSAL_NO_ENGINE: PlaceRefusal
PLACE_REFUSAL_TOO_LARGE: PlaceRefusal
PLACE_REFUSAL_INVALID: PlaceRefusal
PLACE_REFUSAL_DRAINING: PlaceRefusal

class Ticket(_message.Message):
    __slots__ = ("scheduler_boot_id", "number", "engine_boot_id", "batch_id", "batch_size")
    SCHEDULER_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENGINE_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    scheduler_boot_id: str
    number: int
    engine_boot_id: str
    batch_id: int
    batch_size: int
    def __init__(self, scheduler_boot_id: _Optional[str] = ..., number: _Optional[int] = ..., engine_boot_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class PlaceHello(_message.Message):
    __slots__ = ("gateway_id", "boot_id")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    boot_id: str
    def __init__(self, gateway_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class Enqueue(_message.Message):
    __slots__ = ("handle", "model", "tenant_key", "request_id", "priority", "num_sequences", "num_prompt_tokens", "max_output_tokens", "head_block_hashes", "age_us", "time_left_us", "queue_time_left_us", "num_crashes", "avoid_engine_ids", "preferred_engine_id", "preferred_fingerprint", "was_admitted", "traceparent", "was_accepted")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HEAD_BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_LEFT_US_FIELD_NUMBER: _ClassVar[int]
    NUM_CRASHES_FIELD_NUMBER: _ClassVar[int]
    AVOID_ENGINE_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WAS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    WAS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    handle: int
    model: str
    tenant_key: bytes
    request_id: str
    priority: _generation_pb2.Priority
    num_sequences: int
    num_prompt_tokens: int
    max_output_tokens: int
    head_block_hashes: bytes
    age_us: int
    time_left_us: int
    queue_time_left_us: int
    num_crashes: int
    avoid_engine_ids: _containers.RepeatedScalarFieldContainer[str]
    preferred_engine_id: str
    preferred_fingerprint: str
    was_admitted: bool
    traceparent: str
    was_accepted: bool
    def __init__(self, handle: _Optional[int] = ..., model: _Optional[str] = ..., tenant_key: _Optional[bytes] = ..., request_id: _Optional[str] = ..., priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., num_sequences: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., head_block_hashes: _Optional[bytes] = ..., age_us: _Optional[int] = ..., time_left_us: _Optional[int] = ..., queue_time_left_us: _Optional[int] = ..., num_crashes: _Optional[int] = ..., avoid_engine_ids: _Optional[_Iterable[str]] = ..., preferred_engine_id: _Optional[str] = ..., preferred_fingerprint: _Optional[str] = ..., was_admitted: _Optional[bool] = ..., traceparent: _Optional[str] = ..., was_accepted: _Optional[bool] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class EngineReach(_message.Message):
    __slots__ = ("engine_id", "engine_boot_id", "is_reachable")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    IS_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    engine_boot_id: str
    is_reachable: bool
    def __init__(self, engine_id: _Optional[str] = ..., engine_boot_id: _Optional[str] = ..., is_reachable: _Optional[bool] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("hello", "enqueue", "withdraw", "reach")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    hello: PlaceHello
    enqueue: _containers.RepeatedCompositeFieldContainer[Enqueue]
    withdraw: _containers.RepeatedCompositeFieldContainer[Withdraw]
    reach: _containers.RepeatedCompositeFieldContainer[EngineReach]
    def __init__(self, hello: _Optional[_Union[PlaceHello, _Mapping]] = ..., enqueue: _Optional[_Iterable[_Union[Enqueue, _Mapping]]] = ..., withdraw: _Optional[_Iterable[_Union[Withdraw, _Mapping]]] = ..., reach: _Optional[_Iterable[_Union[EngineReach, _Mapping]]] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("handle", "engine_id", "address", "tickets", "queued_us", "queue_reason")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_REASON_FIELD_NUMBER: _ClassVar[int]
    handle: int
    engine_id: str
    address: str
    tickets: _containers.RepeatedCompositeFieldContainer[Ticket]
    queued_us: int
    queue_reason: str
    def __init__(self, handle: _Optional[int] = ..., engine_id: _Optional[str] = ..., address: _Optional[str] = ..., tickets: _Optional[_Iterable[_Union[Ticket, _Mapping]]] = ..., queued_us: _Optional[int] = ..., queue_reason: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("handle", "refusal", "retry_delay_us")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_US_FIELD_NUMBER: _ClassVar[int]
    handle: int
    refusal: PlaceRefusal
    retry_delay_us: int
    def __init__(self, handle: _Optional[int] = ..., refusal: _Optional[_Union[PlaceRefusal, str]] = ..., retry_delay_us: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model", "num_engines", "max_model_len", "max_pool_tokens", "max_sequences", "vocab_size", "block_size", "revision")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_ENGINES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_engines: int
    max_model_len: int
    max_pool_tokens: int
    max_sequences: int
    vocab_size: int
    block_size: int
    revision: str
    def __init__(self, model: _Optional[str] = ..., num_engines: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_pool_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ..., vocab_size: _Optional[int] = ..., block_size: _Optional[int] = ..., revision: _Optional[str] = ...) -> None: ...

class QueueNews(_message.Message):
    __slots__ = ("handle", "num_ahead")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    handle: int
    num_ahead: int
    def __init__(self, handle: _Optional[int] = ..., num_ahead: _Optional[int] = ...) -> None: ...

class PlaceServerHello(_message.Message):
    __slots__ = ("scheduler_id", "boot_id")
    SCHEDULER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    scheduler_id: str
    boot_id: str
    def __init__(self, scheduler_id: _Optional[str] = ..., boot_id: _Optional[str] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("hello", "placed", "refused", "models", "has_models", "queue_news")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    HAS_MODELS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NEWS_FIELD_NUMBER: _ClassVar[int]
    hello: PlaceServerHello
    placed: _containers.RepeatedCompositeFieldContainer[Placed]
    refused: _containers.RepeatedCompositeFieldContainer[Refused]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    has_models: bool
    queue_news: _containers.RepeatedCompositeFieldContainer[QueueNews]
    def __init__(self, hello: _Optional[_Union[PlaceServerHello, _Mapping]] = ..., placed: _Optional[_Iterable[_Union[Placed, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[Refused, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., has_models: _Optional[bool] = ..., queue_news: _Optional[_Iterable[_Union[QueueNews, _Mapping]]] = ...) -> None: ...

class SchedulerServiceExplainRequest(_message.Message):
    __slots__ = ("enqueue",)
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    enqueue: Enqueue
    def __init__(self, enqueue: _Optional[_Union[Enqueue, _Mapping]] = ...) -> None: ...

class SchedulerServiceExplainResponse(_message.Message):
    __slots__ = ("engine_id", "bucket_tokens", "num_ahead", "snapshot_age_us", "refusal")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_US_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    bucket_tokens: int
    num_ahead: int
    snapshot_age_us: int
    refusal: PlaceRefusal
    def __init__(self, engine_id: _Optional[str] = ..., bucket_tokens: _Optional[int] = ..., num_ahead: _Optional[int] = ..., snapshot_age_us: _Optional[int] = ..., refusal: _Optional[_Union[PlaceRefusal, str]] = ...) -> None: ...

class GetQueueStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClassQueue(_message.Message):
    __slots__ = ("priority", "num_sequences", "num_tokens", "oldest_age_us")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_US_FIELD_NUMBER: _ClassVar[int]
    priority: _generation_pb2.Priority
    num_sequences: int
    num_tokens: int
    oldest_age_us: int
    def __init__(self, priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ..., oldest_age_us: _Optional[int] = ...) -> None: ...

class EngineState(_message.Message):
    __slots__ = ("engine_id", "boot_id", "address", "is_live", "num_running", "num_unnamed_tickets", "model")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_LIVE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_UNNAMED_TICKETS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    boot_id: str
    address: str
    is_live: bool
    num_running: int
    num_unnamed_tickets: int
    model: str
    def __init__(self, engine_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., address: _Optional[str] = ..., is_live: _Optional[bool] = ..., num_running: _Optional[int] = ..., num_unnamed_tickets: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class GetQueueStateResponse(_message.Message):
    __slots__ = ("queues", "engines", "boot_id")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[ClassQueue]
    engines: _containers.RepeatedCompositeFieldContainer[EngineState]
    boot_id: str
    def __init__(self, queues: _Optional[_Iterable[_Union[ClassQueue, _Mapping]]] = ..., engines: _Optional[_Iterable[_Union[EngineState, _Mapping]]] = ..., boot_id: _Optional[str] = ...) -> None: ...
