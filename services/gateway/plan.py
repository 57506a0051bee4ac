"""A request whose prompt is ids and whose limits are known: what its life, peers and caller are told."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagemesh.v1 import gateway_pb2, generation_pb2
from services.gateway.access.identity import Tenant
from services.gateway.access.resume_token import ResumeClaims, StreamFacts, make_resume_token
from services.gateway.access.salt import cache_salt
from services.gateway.encoding import EncodedPrompt
from services.gateway.history.sessions import TurnLease
from services.gateway.life.hop_clock import HopClock
from services.gateway.life.request import RequestLife
from services.gateway.life.request_words import JitterFn, Promise, RequestSpec
from services.gateway.mesh import Mesh, Route
from services.gateway.request_terms import RequestTerms
from services.gateway.settings import GatewaySettings
from services.gateway.spec.generation_spec import CachePolicy, GenerationSpec
from services.gateway.text.output_text import OutputRules, OutputText

MAX_ID_BYTES = 5
"""Of one id in a message, at most."""
RESUME_BYTES = 1024
"""Of all else that a resume adds: token, identity, seed, the frames around its ids."""
CHOICE_BYTES = 16
"""Of a choice's frame in a resume."""
MAX_STARTED_BYTES = 2**20
"""No reply is larger."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Fixed before the first enqueue."""

    tenant: Tenant
    route: Route
    spec: GenerationSpec
    prompt: EncodedPrompt
    facts: StreamFacts
    claims: ResumeClaims
    lease: TurnLease | None
    deadline_s: float | None
    """On the gateway's clock."""

    @property
    def stop_ids(self) -> list[int]:
        """All ids that end a choice."""
        is_eos_ignored = self.spec.sampling.ignore_eos
        eos_ids = () if is_eos_ignored else self.prompt.vocabulary.info.eos_ids
        return sorted({*self.spec.stop.ids, *eos_ids})

    @property
    def known_output_ids(self) -> tuple[tuple[int, ...], ...]:
        """Per choice, what the caller has already."""
        return self.spec.resume.output_ids if self.spec.resume is not None else ((),) * self.spec.n

    def is_resumable(self, num_request_bytes: int, max_message_bytes: int) -> bool:
        """Whether `started` can tell the prompt's ids, and every resume bring back all ids.

        num_request_bytes are those of the request without its own resume.
        """
        num_output_ids = self.spec.n * self.claims.max_tokens
        return can_resume(
            num_request_bytes, len(self.prompt.ids), num_output_ids, self.spec.n, max_message_bytes
        )


def can_resume(
    num_request_bytes: int, num_prompt_ids: int, num_output_ids: int, n: int, max_message_bytes: int
) -> bool:
    """A resume repeats the request and adds all ids; it must not be over the limit at any point."""
    num_started_bytes = RESUME_BYTES + num_prompt_ids * MAX_ID_BYTES
    num_bytes = num_request_bytes + num_started_bytes + num_output_ids * MAX_ID_BYTES + n * CHOICE_BYTES
    return num_started_bytes <= MAX_STARTED_BYTES and num_bytes <= max_message_bytes


def new_life(
    plan: Plan, settings: GatewaySettings, hops: HopClock, clock: Callable[[], float], jitter: JitterFn
) -> RequestLife:
    """The state machine of the request."""
    spec = plan.spec
    rules = OutputRules(
        max_tokens=plan.claims.max_tokens,
        min_tokens=spec.sampling.min_tokens,
        stop_ids=frozenset(plan.stop_ids),
        stop_texts=spec.stop.texts,
        include_stop=spec.stop.include_stop,
        skip_special_tokens=spec.skip_special_tokens,
    )
    request_spec = RequestSpec(
        client_attempt=spec.client_attempt,
        num_prompt_ids=len(plan.prompt.ids),
        max_tokens=plan.claims.max_tokens,
        known_output_ids=plan.known_output_ids,
        was_admitted=spec.resume is not None,
        known_fingerprint=plan.claims.fingerprint,
        known_tier=plan.claims.tier,
        deadline_s=plan.deadline_s,
        max_queue_wait_s=spec.max_queue_wait_s,
        max_run_time_s=spec.max_run_time_s,
        preferred_engine_id=plan.lease.session.last_engine_id if plan.lease is not None else "",
        unserved_limit_s=settings.unserved_limit_s,
    )
    table = plan.prompt.vocabulary.table
    texts = [OutputText(table, plan.prompt.ids, rules) for _ in range(spec.n)]
    return RequestLife(request_spec, texts, hops, clock, jitter)


def peer_terms(
    plan: Plan, mesh: Mesh, sampling: generation_pb2.SamplingParams, arrived_s: float
) -> RequestTerms:
    """What schedulers and engines are told."""
    spec = plan.spec
    salt = cache_salt(mesh.deployment_key, plan.tenant, spec.cache_scope, spec.session)
    num_head = mesh.settings.head_blocks if spec.cache_policy is not CachePolicy.BYPASS else 0
    return RequestTerms(
        model=plan.route.model,
        tenant_key=plan.tenant.key,
        request_id=plan.facts.request_id,
        prompt_ids=plan.prompt.ids,
        max_tokens=plan.claims.max_tokens,
        seed=plan.facts.seed,
        sampling=sampling,
        stop_ids=plan.stop_ids,
        priority=spec.priority,
        cache_salt=salt,
        cache_policy=spec.cache_policy,
        session_key=plan.lease.key if plan.lease is not None else b"",
        retention_ttl_s=mesh.settings.session_ttl_s,
        head_block_hashes=plan.route.head_hashes(plan.prompt.ids, salt, num_head),
        arrived_s=arrived_s,
        deadline_s=plan.deadline_s,
    )


def started_words(
    plan: Plan, deployment_key: bytes, promise: Promise, trace_id: str, is_resumable: bool
) -> gateway_pb2.GenerateResponse:
    """The first event."""
    started = gateway_pb2.Started(
        request_id=plan.facts.request_id,
        seed=plan.facts.seed,
        resumable=is_resumable,
        model_revision=promise.revision or plan.facts.revision,
        system_fingerprint=promise.fingerprint,
        session_version=plan.claims.session_version,
        trace_id=trace_id,
        num_prompt_tokens=len(plan.prompt.ids),
    )
    if is_resumable:
        started.prompt_ids.extend(plan.prompt.ids)
        claims = replace(plan.claims, fingerprint=promise.fingerprint, tier=promise.tier)
        started.resume_token = make_resume_token(deployment_key, plan.tenant, plan.spec, plan.facts, claims)
    return gateway_pb2.GenerateResponse(started=started)
