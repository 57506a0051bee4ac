"""What all requests of one gateway share: peers, sessions, instruments and secrets. `wiring` builds it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.trace import Tracer

from services.chassis.tasks import Tasks
from services.contract.block_hash import block_hashes
from services.contract.errors import MeshError, Reason, invalid_field, unavailable
from services.gateway.access.identity import Identities
from services.gateway.history.sessions import Sessions
from services.gateway.metrics import GatewayMetrics
from services.gateway.peers.engine_fleet import EngineFleet
from services.gateway.peers.placement_client import PlacementClient
from services.gateway.peers.scheduler_words import ModelLimits
from services.gateway.peers.tokenizer_client import TokenizerPool, Vocabulary
from services.gateway.running_requests import RunningRequests
from services.gateway.settings import GatewaySettings

RETRY_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class Route:
    """One served model: its tokenizers' vocabulary and its engines' limits."""

    model: str
    vocabulary: Vocabulary
    limits: ModelLimits

    @property
    def vocab_size(self) -> int:
        """Ids that both sides know."""
        return min(self.vocabulary.info.vocab_size, self.limits.vocab_size or self.vocabulary.info.vocab_size)

    @property
    def max_tokens(self) -> int:
        """Ids in prompt and output together."""
        return min(self.limits.max_model_len, self.limits.max_pool_tokens)

    def head_hashes(self, ids: Sequence[int], salt: bytes, num_blocks: int) -> bytes:
        """Names of the prompt's first full blocks, one after the other."""
        block_size = self.limits.block_size
        if not block_size:
            return b""
        return b"".join(block_hashes(ids[: num_blocks * block_size], block_size, salt, self.limits.revision))


@dataclass(frozen=True, slots=True)
class Mesh:
    """The gateway's own, constructed once."""

    settings: GatewaySettings
    deployment_key: bytes
    identities: Identities
    tokenizers: TokenizerPool
    placement: PlacementClient
    fleet: EngineFleet
    sessions: Sessions
    running: RunningRequests
    tasks: Tasks
    metrics: GatewayMetrics
    tracer: Tracer
    rng: random.Random
    clock: Callable[[], float]
    ready_by_s: float
    """Until then requests wait for peers that may just be starting."""

    async def route(self, name: str) -> Route:
        """Raises MeshError: UNKNOWN_MODEL, INVALID_FIELD if a name is needed, UNAVAILABLE."""
        vocabulary = await self.vocabulary(name)
        model = vocabulary.info.model
        limits = await self.placement.wait_limits(model)
        if limits is None:
            raise unavailable("no engine has reported yet", RETRY_DELAY_S)
        return Route(model, vocabulary, limits)

    async def vocabulary(self, name: str) -> Vocabulary:
        """Of the named model, or of the only one."""
        await self.tokenizers.wait_up(name, self._start_wait_s())
        models = self.tokenizers.models()
        if not models:
            raise unavailable("no tokenizer answers", RETRY_DELAY_S)
        if not name and len(models) > 1:
            raise invalid_field("model", "several models are served; name one")
        vocabulary = self.tokenizers.vocabulary(name or models[0])
        if vocabulary is None:
            raise MeshError(Reason.UNKNOWN_MODEL, "no such model is served", field="model")
        return vocabulary

    def encode_until_s(self, deadline_s: float | None) -> float:
        """Until when a prompt may be encoded."""
        until_s = self.clock() + self.settings.encode_wait_s
        return until_s if deadline_s is None else min(until_s, deadline_s)

    def _start_wait_s(self) -> float:
        return max(0.0, self.ready_by_s - self.clock())
