"""What one validated request asks for, every default resolved but those that need a model's limits.

Knows no protobuf, transport or engine. Numbers of the enums equal those of the contract.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from services.contract.priority import Priority


class Role(IntEnum):
    """Who speaks in a segment."""

    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    TOOL = 4


class TruncationSide(IntEnum):
    """Which ids go when the prompt is over the limit."""

    NONE = 0
    LEFT = 1
    RIGHT = 2


class CachePolicy(IntEnum):
    """How the prefix cache may be used."""

    USE = 1
    READ_ONLY = 2
    BYPASS = 3


class CacheScope(IntEnum):
    """Who may share the request's cached blocks."""

    TENANT = 1
    USER = 2
    SESSION = 3


class FinishReason(IntEnum):
    """Why a choice ended well."""

    STOP = 1
    LENGTH = 2
    RUN_TIME = 3


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, no template."""

    text: str


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Ids that the caller encoded."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One turn of a conversation."""

    role: Role
    content: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ConversationPrompt:
    """Turns for the chat template."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class MessagesPrompt:
    """OpenAI-style messages, still JSON: the tokenizer parses them."""

    json: str


Prompt = TextPrompt | IdsPrompt | ConversationPrompt | MessagesPrompt


@dataclass(frozen=True, slots=True)
class Truncation:
    """Applied to ids after encoding. max_prompt_tokens 0 is what the model limit leaves after max_tokens."""

    side: TruncationSide = TruncationSide.NONE
    max_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How ids are drawn. top_k 0 is off; logprobs None is none, 0 the chosen id only."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """What the caller wants to end a choice; end-of-sequence ids are not among the ids."""

    texts: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """The request is a turn of this session."""

    id: str
    user_id: str
    expect_version: int | None = None
    keep_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """What a caller has of a stream that was cut."""

    next_seq_id: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[tuple[int, ...], ...]
    """Per choice."""
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """A request that passed validation."""

    prompt: Prompt
    request_id: str = ""
    """Empty: the gateway draws one."""
    client_attempt: int = 0
    model: str = ""
    """Empty: the only model."""
    truncation: Truncation = Truncation()
    n: int = 1
    max_tokens: int | None = None
    """None: min(the gateway's default, model limit - prompt)."""
    sampling: Sampling = Sampling()
    stop: Stop = Stop()
    skip_special_tokens: bool = True
    cache_policy: CachePolicy = CachePolicy.USE
    cache_scope: CacheScope = CacheScope.TENANT
    session: SessionTurn | None = None
    priority: Priority = Priority.INTERACTIVE
    max_queue_wait_s: float | None = None
    max_run_time_s: float | None = None
    seed: int | None = None
    """None: the gateway draws one."""
    resume: Resume | None = None
