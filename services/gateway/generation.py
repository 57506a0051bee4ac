"""One Generate call through the pipeline: authenticate, session, encode, place, run, decode, deliver, end.

It orders the steps and owns what must be given back whatever happens; each step's work is elsewhere.
"""

import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import dataclass

from pagemesh.v1 import gateway_pb2, generation_pb2
from services.contract.errors import MeshError, Reason
from services.gateway.access.identity import Tenant
from services.gateway.access.resume_token import ResumeClaims, StreamFacts, verify_resume_token
from services.gateway.delivery import Delivery, WriteFn
from services.gateway.encoding import encode_prompt
from services.gateway.end_words import EndFacts, complete_words, receipt_words
from services.gateway.history.store.protocol import LeaseOwner
from services.gateway.history.turn import Turn
from services.gateway.life.hop_clock import HopClock, Stage
from services.gateway.life.limits import deadline_passed
from services.gateway.life.outbox import Outbox
from services.gateway.life.request_words import Complete, Fail
from services.gateway.live_request import LiveRequest
from services.gateway.mesh import Mesh, Route
from services.gateway.observer import RequestObserver
from services.gateway.plan import Plan, new_life, peer_terms, started_words
from services.gateway.prompt_encoding import check_turn_truncation
from services.gateway.request_trace import RequestTrace
from services.gateway.running_requests import RunningRequest
from services.gateway.spec.generation_spec import GenerationSpec
from services.gateway.spec.validation import check_limits, check_size, validate_generate

DEADLINE_SLACK_S = 0.05
"""The transport's own timer may cancel a call a moment before ours says why."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What the transport knows of a call. deadline_s is on the gateway's clock."""

    authorization: str | None
    traceparent: str
    deadline_s: float | None


class Generation:
    """State of one call; used once."""

    def __init__(
        self, mesh: Mesh, request: gateway_pb2.GenerateRequest, caller: Caller, write: WriteFn
    ) -> None:
        self._mesh = mesh
        self._request = request
        self._caller = caller
        self._write = write
        self._hops = HopClock(mesh.clock())
        self._trace = RequestTrace(mesh.tracer, caller.traceparent)
        self._end_facts = EndFacts(self._hops, self._trace.trace_id)
        self._cleanup = ExitStack()
        self._task: asyncio.Task[object] | None = None
        self._interruption: MeshError | None = None
        self._live: LiveRequest | None = None
        self._turn: Turn | None = None

    async def run(self, refusal: MeshError | None = None) -> None:
        """Writes the stream and returns after `complete`. Raises MeshError where it ends otherwise.

        With a refusal it ends so at once, and is counted and traced like any other.
        """
        self._task = asyncio.current_task()
        self._mesh.metrics.started.inc()
        outcome, error = "internal", None
        try:
            if refusal is not None:
                raise refusal
            plan, entry = await self._prepare_in_time()
            await self._generate(plan, entry)
            outcome = "ok"
        except MeshError as mesh_error:
            outcome, error = mesh_error.reason.value.lower(), mesh_error
            raise
        except asyncio.CancelledError:
            outcome = "deadline" if self._is_overdue() else "cancelled"
            raise
        finally:
            self._close(outcome, error)

    def receipt(self) -> generation_pb2.Receipt:
        """The account so far."""
        return receipt_words(self._end_facts, self._mesh.clock())

    # before the first enqueue

    async def _prepare_in_time(self) -> tuple[Plan, RunningRequest]:
        """Up to here the caller's deadline and interruptions cancel; afterwards the life itself ends."""
        try:
            async with asyncio.timeout_at(self._caller.deadline_s):
                with self._trace.hop("receive"):
                    tenant, route, spec = await self._receive()
                    request_id = spec.request_id or secrets.token_hex(16)
                    entry = self._enter(tenant, spec, request_id)
                return await self._prepare(tenant, route, spec, request_id), entry
        except TimeoutError:
            raise deadline_passed() from None
        except asyncio.CancelledError:
            if self._interruption is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._interruption from None

    async def _receive(self) -> tuple[Tenant, Route, GenerationSpec]:
        tenant = self._mesh.identities.authenticate(self._caller.authorization)
        check_size(self._request.ByteSize(), self._mesh.settings.max_message_bytes)
        route = await self._mesh.route(self._request.model)
        spec = validate_generate(self._request, route.vocab_size)
        check_turn_truncation(spec)
        return tenant, route, spec

    def _enter(self, tenant: Tenant, spec: GenerationSpec, request_id: str) -> RunningRequest:
        self._trace.describe({"gen_ai.operation.name": "chat", "pagemesh.request_id": request_id})
        running = self._mesh.running.enter(tenant.name, request_id, spec.client_attempt, self._interrupt)
        return self._cleanup.enter_context(running)

    def _interrupt(self, error: MeshError) -> None:
        """Ends it from outside, wherever it is."""
        if self._live is not None:
            self._live.fail(error)
        elif self._interruption is None and self._task is not None:
            self._interruption = error
            self._task.cancel()

    async def _prepare(self, tenant: Tenant, route: Route, spec: GenerationSpec, request_id: str) -> Plan:
        seed = spec.seed if spec.seed is not None else secrets.randbits(64)
        template, revision = route.vocabulary.info.template_sha256, route.limits.revision
        claims = None
        if spec.resume is not None:
            facts = StreamFacts(request_id, seed, spec.resume.prompt_ids, revision, template)
            key = self._mesh.deployment_key
            claims = verify_resume_token(key, tenant, spec, facts, spec.resume.token)
        if spec.session is not None:
            with self._trace.hop("session"):
                self._turn = await self._begin_turn(tenant, route, spec, request_id, claims)
        lease = self._turn.lease if self._turn is not None else None
        self._hops.enter(Stage.ENCODE, self._mesh.clock())
        with self._trace.hop("encode") as traceparent:
            prompt = await encode_prompt(
                self._mesh,
                route,
                spec,
                lease.history if lease is not None else (),
                deadline_s=self._caller.deadline_s,
                traceparent=traceparent,
            )
        self._end_facts.prompt = prompt
        self._hops.enter(Stage.RECEIVE, self._mesh.clock())
        if claims is None:
            default_max_tokens = self._mesh.settings.default_max_tokens
            max_tokens = check_limits(spec, len(prompt.ids), route.limits, default_max_tokens)
            claims = ResumeClaims(max_tokens, lease.version if lease is not None else None)
        facts = StreamFacts(request_id, seed, prompt.ids, revision, template)
        return Plan(tenant, route, spec, prompt, facts, claims, lease, self._caller.deadline_s)

    async def _begin_turn(
        self,
        tenant: Tenant,
        route: Route,
        spec: GenerationSpec,
        request_id: str,
        claims: ResumeClaims | None,
    ) -> Turn:
        assert spec.session is not None
        owner = LeaseOwner(request_id, spec.client_attempt)
        sessions = self._mesh.sessions
        if claims is None:
            lease = await sessions.begin_turn(tenant, spec.session, owner, route.model)
        else:
            version = claims.session_version or 0
            lease = await sessions.resume_turn(tenant, spec.session, owner, version, route.model)
        return Turn(sessions, lease, self._mesh.tasks)

    # from the first enqueue on

    async def _generate(self, plan: Plan, entry: RunningRequest) -> None:
        mesh, spec = self._mesh, plan.spec
        life = new_life(plan, mesh.settings, self._hops, mesh.clock, mesh.rng.random)
        self._end_facts.life = life
        observer = RequestObserver(mesh.metrics, self._end_facts, spec.priority, entry)
        self._cleanup.callback(observer.close, self._trace, plan)
        outbox = Outbox(spec.resume.next_seq_id if spec.resume is not None else 0)
        live = LiveRequest(
            life=life,
            terms=peer_terms(plan, mesh, self._request.sampling, self._hops.arrived_s),
            outbox=outbox,
            placement=mesh.placement,
            fleet=mesh.fleet,
            trace=self._trace,
            observer=observer,
        )
        self._live = live
        self._cleanup.callback(live.close)
        stall_timeout_s = mesh.settings.stall_timeout_s
        delivery = Delivery(self._write, outbox, spec.n, stall_timeout_s, observer.token_written)
        self._cleanup.callback(delivery.close)
        try:
            delivery.watch(live)
            live.start()
            end = await delivery.run(live, lambda: self._started(plan, live))
            if isinstance(end, Fail):
                raise end.error
            await self._complete(plan, delivery, end)
        except asyncio.CancelledError:
            if delivery.stuck_error is not None and self._task is not None:
                self._task.uncancel()
                raise delivery.stuck_error from None
            live.fail(MeshError(Reason.UNAVAILABLE, "the caller is gone"))
            self._keep_delivered(plan, delivery)
            raise

    def _started(self, plan: Plan, live: LiveRequest) -> gateway_pb2.GenerateResponse:
        max_message_bytes = self._mesh.settings.max_message_bytes
        num_request_bytes = self._request.ByteSize() - self._request.resume.ByteSize()
        is_resumable = plan.is_resumable(num_request_bytes, max_message_bytes)
        key = self._mesh.deployment_key
        return started_words(plan, key, live.life.promise(), self._trace.trace_id, is_resumable)

    async def _complete(self, plan: Plan, delivery: Delivery, end: Complete) -> None:
        """The session is saved before the caller hears that it is."""
        version = None
        if self._turn is not None:
            turn, self._turn = self._turn, None
            ids = (*plan.prompt.ids, *self._end_facts.output_ids(0))
            version = await turn.save_for_good(ids, len(plan.prompt.ids), self._end_facts.engine_id)
            self._end_facts.is_history_saved = version is not None
        for choice in end.choices:
            self._mesh.metrics.finishes.labels(reason=choice.finish.reason.name.lower()).inc()
        with self._trace.hop("deliver"):
            complete = complete_words(self._end_facts, end, version, self._mesh.clock())
            await delivery.send(gateway_pb2.GenerateResponse(complete=complete))

    def _keep_delivered(self, plan: Plan, delivery: Delivery) -> None:
        """A cancelled turn keeps what its caller has; nobody waits for the saving."""
        num_delivered = len(plan.known_output_ids[0]) + delivery.num_delivered[0]
        if self._turn is not None and num_delivered and not self._is_overdue():
            turn, self._turn = self._turn, None
            ids = (*plan.prompt.ids, *self._end_facts.output_ids(0)[:num_delivered])
            turn.save_later(ids, len(plan.prompt.ids), self._end_facts.engine_id)

    def _is_overdue(self) -> bool:
        deadline_s = self._caller.deadline_s
        return deadline_s is not None and self._mesh.clock() >= deadline_s - DEADLINE_SLACK_S

    def _close(self, outcome: str, error: MeshError | None) -> None:
        if self._turn is not None:
            self._turn.give_up_later()
            self._end_facts.is_history_saved = False
        self._cleanup.close()
        metrics = self._mesh.metrics
        metrics.requests.labels(outcome=outcome).inc()
        metrics.elapsed.labels(outcome=outcome).observe(self._mesh.clock() - self._hops.arrived_s)
        self._trace.close(outcome, error)
