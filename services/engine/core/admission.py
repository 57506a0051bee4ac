"""What a gateway asks for with one admit, in the engine's own words. Checked already; knows no protobuf."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from services.contract.priority import Priority
from services.engine.core.prefix_cache import Retention
from services.engine.step import SamplingSpec


class Identity(NamedTuple):
    """The same for all attempts at one choice."""

    tenant_key: bytes
    request_id: str
    choice_index: int


class Attempt(NamedTuple):
    """Orders the attempts at one identity."""

    client: int
    gateway: int


class Ticket(NamedTuple):
    """A scheduler's permission."""

    scheduler_boot_id: str
    number: int
    engine_boot_id: str
    batch_id: int
    batch_size: int


class CachePolicy(Enum):
    """How a sequence uses the prefix cache."""

    USE = auto()
    READ_ONLY = auto()
    BYPASS = auto()


@dataclass(frozen=True, slots=True)
class Admission:
    """One sequence to start or to go on with."""

    stream_id: int
    handle: int
    identity: Identity
    attempt: Attempt
    ids: tuple[int, ...]
    num_prompt_tokens: int
    max_output_tokens: int
    sampling: SamplingSpec
    priority: Priority = Priority.INTERACTIVE
    age_us: int = 0
    time_left_us: int = 0
    """0 is no deadline."""
    cache_salt: bytes = b""
    cache_policy: CachePolicy = CachePolicy.USE
    retention: Retention | None = None
    ticket: Ticket | None = None
    traceparent: str = ""
    is_suspect: bool = False
    """Runs alone until its first id."""

    @property
    def max_tokens(self) -> int:
        """Prompt and output at most."""
        return self.num_prompt_tokens + self.max_output_tokens
