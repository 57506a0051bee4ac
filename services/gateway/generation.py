"""One Generate call through the pipeline: authenticate, validate, session, encode, place, run, deliver, one end.

It orders the steps and owns what must be given back whatever happens; each step's work is elsewhere.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pagemesh.v1 import gateway_pb2, generation_pb2
from services.contract.errors import MeshError, Reason
from services.gateway.delivery import Delivery, WriteFn
from services.gateway.encoding import EncodedPrompt, encode_prompt
from services.gateway.end_words import EndFacts, complete_words, receipt_words
from services.gateway.generation_spec import CachePolicy, GenerationSpec
from services.gateway.hop_clock import HopClock, Stage
from services.gateway.identity import Tenant
from services.gateway.limits import deadline_passed
from services.gateway.live_request import LiveRequest
from services.gateway.mesh import Mesh, Route
from services.gateway.metrics import label
from services.gateway.outbox import Outbox
from services.gateway.output_text import OutputRules, OutputText
from services.gateway.prompt_encoding import check_turn_truncation
from services.gateway.request import RequestLife
from services.gateway.request_terms import RequestTerms
from services.gateway.request_trace import RequestTrace
from services.gateway.request_words import Complete, EmitTokens, Fail, RequestSpec
from services.gateway.resume_token import ResumeClaims, StreamFacts, make_resume_token, verify_resume_token
from services.gateway.running_requests import RunningRequest
from services.gateway.salt import cache_salt
from services.gateway.store.protocol import LeaseOwner
from services.gateway.turn import Turn
from services.gateway.validation import check_limits, validate_generate

MAX_ID_BYTES = 5
"""Of one id in a resume's message, at most."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What the transport knows of a call. deadline_s is on the gateway's clock."""

    authorization: str | None
    traceparent: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request whose prompt is ids and whose limits are known."""

    prompt: EncodedPrompt
    max_tokens: int
    facts: StreamFacts
    session_version: int | None
    is_resumable: bool


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

    async def run(self) -> None:
        """Writes the stream and returns after `complete`. Raises MeshError where it ends otherwise."""
        self._task = asyncio.current_task()
        self._mesh.metrics.started.inc()
        outcome, error = "internal", None
        try:
            await self._run_to_end()
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

    async def _run_to_end(self) -> None:
        try:
            async with asyncio.timeout_at(self._caller.deadline_s) as timeout:
                with self._trace.hop("receive"):
                    tenant, route, spec = await self._receive()
                    request_id = spec.request_id or secrets.token_hex(16)
                    entry = self._enter(tenant, spec, request_id)
                plan = await self._prepare(tenant, route, spec, request_id)
                # From here on the life's own timer watches the deadline.
                timeout.reschedule(None)
        except TimeoutError:
            raise deadline_passed() from None
        except asyncio.CancelledError:
            if self._interruption is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._interruption from None
        await self._generate(tenant, route, spec, plan, entry)

    async def _receive(self) -> tuple[Tenant, Route, GenerationSpec]:
        tenant = self._mesh.identities.authenticate(self._caller.authorization)
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
        claims = self._verify_resume(tenant, route, spec, request_id)
        if spec.session is not None:
            with self._trace.hop("session"):
                self._turn = await self._begin_turn(tenant, route, spec, request_id, claims)
        self._hops.enter(Stage.ENCODE, self._mesh.clock())
        with self._trace.hop("encode") as traceparent:
            history = self._turn.lease.history if self._turn is not None else ()
            prompt = await encode_prompt(self._mesh, route, spec, history, traceparent)
        self._end_facts.prompt = prompt
        self._hops.enter(Stage.RECEIVE, self._mesh.clock())
        if claims is not None:
            max_tokens = claims.max_tokens
        else:
            max_tokens = check_limits(
                spec, len(prompt.ids), route.limits, self._mesh.settings.default_max_tokens
            )
        seed = spec.seed if spec.seed is not None else secrets.randbits(64)
        facts = self._stream_facts(route, spec, request_id, seed, prompt.ids)
        version = self._turn.lease.session.version if self._turn is not None else None
        if claims is not None:
            version = claims.session_version
        return Plan(prompt, max_tokens, facts, version, self._is_resumable(spec, len(prompt.ids), max_tokens))

    def _verify_resume(
        self, tenant: Tenant, route: Route, spec: GenerationSpec, request_id: str
    ) -> ResumeClaims | None:
        if spec.resume is None:
            return None
        assert spec.seed is not None
        facts = self._stream_facts(route, spec, request_id, spec.seed, spec.resume.prompt_ids)
        return verify_resume_token(self._mesh.deployment_key, tenant, spec, facts, spec.resume.token)

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

    def _stream_facts(
        self, route: Route, spec: GenerationSpec, request_id: str, seed: int, prompt_ids: tuple[int, ...]
    ) -> StreamFacts:
        template = route.vocabulary.info.template_sha256
        return StreamFacts(request_id, seed, prompt_ids, route.limits.revision, template)

    def _is_resumable(self, spec: GenerationSpec, num_prompt_ids: int, max_tokens: int) -> bool:
        """A resume repeats the request and adds all ids; it must not be over the limit at any point."""
        num_ids = num_prompt_ids + spec.n * max_tokens
        num_bytes = self._request.ByteSize() + num_ids * MAX_ID_BYTES
        return num_bytes < self._mesh.settings.max_message_bytes

    # running

    async def _generate(
        self, tenant: Tenant, route: Route, spec: GenerationSpec, plan: Plan, entry: RunningRequest
    ) -> None:
        mesh, settings = self._mesh, self._mesh.settings
        outbox = Outbox(spec.resume.next_seq_id if spec.resume is not None else 0)
        life = self._life(route, spec, plan)
        self._end_facts.life = life
        priority = label(spec.priority)
        waiting = mesh.metrics.waiting.labels(priority=priority)
        running = mesh.metrics.running.labels(priority=priority)

        def on_running(is_running: bool) -> None:
            running.inc(1 if is_running else -1)
            waiting.inc(-1 if is_running else 1)
            entry.was_admitted = entry.was_admitted or is_running

        terms = self._terms(tenant, route, spec, plan)
        live = LiveRequest(
            life,
            terms,
            outbox,
            mesh.placement,
            mesh.fleet,
            self._trace,
            mesh.metrics.stale_tokens.inc,
            on_running,
        )
        self._live = live
        waiting.inc()
        self._cleanup.callback(waiting.dec)
        self._cleanup.callback(live.close)
        delivery = Delivery(
            self._write, outbox, spec.n, settings.stall_timeout_s, self._observe_tokens(priority)
        )
        self._cleanup.callback(delivery.close)
        try:
            delivery.watch(live)
            live.start()
            end = await delivery.run(live, lambda: self._started(tenant, spec, plan, live))
            if isinstance(end, Fail):
                raise end.error
            await self._complete(spec, plan, delivery, end)
        except asyncio.CancelledError:
            if delivery.stuck_error is not None and self._task is not None:
                self._task.uncancel()
                raise delivery.stuck_error from None
            live.fail(MeshError(Reason.UNAVAILABLE, "the caller is gone"))
            self._keep_delivered(spec, plan, delivery)
            raise
        finally:
            self._observe_end(route, spec, life, priority)

    def _life(self, route: Route, spec: GenerationSpec, plan: Plan) -> RequestLife:
        rules = OutputRules(
            max_tokens=plan.max_tokens,
            min_tokens=spec.sampling.min_tokens,
            stop_ids=frozenset(self._stop_ids(plan, spec)),
            stop_texts=spec.stop.texts,
            include_stop=spec.stop.include_stop,
            skip_special_tokens=spec.skip_special_tokens,
        )
        known = spec.resume.output_ids if spec.resume is not None else ((),) * spec.n
        request_spec = RequestSpec(
            client_attempt=spec.client_attempt,
            num_prompt_ids=len(plan.prompt.ids),
            max_tokens=plan.max_tokens,
            known_output_ids=known,
            deadline_s=self._caller.deadline_s,
            max_queue_wait_s=spec.max_queue_wait_s,
            max_run_time_s=spec.max_run_time_s,
            preferred_engine_id=self._turn.lease.session.last_engine_id if self._turn is not None else "",
            unserved_limit_s=self._mesh.settings.unserved_limit_s,
        )
        table = plan.prompt.vocabulary.table
        texts = [OutputText(table, plan.prompt.ids, rules) for _ in range(spec.n)]
        return RequestLife(request_spec, texts, self._hops, self._mesh.clock, self._mesh.rng.random)

    def _stop_ids(self, plan: Plan, spec: GenerationSpec) -> Sequence[int]:
        eos_ids = () if spec.sampling.ignore_eos else plan.prompt.vocabulary.info.eos_ids
        return sorted({*spec.stop.ids, *eos_ids})

    def _terms(self, tenant: Tenant, route: Route, spec: GenerationSpec, plan: Plan) -> RequestTerms:
        mesh, ids = self._mesh, plan.prompt.ids
        salt = cache_salt(mesh.deployment_key, tenant, spec.cache_scope, spec.session)
        num_head = mesh.settings.head_blocks if spec.cache_policy is not CachePolicy.BYPASS else 0
        return RequestTerms(
            model=route.model,
            tenant_key=tenant.key,
            request_id=plan.facts.request_id,
            prompt_ids=ids,
            max_tokens=plan.max_tokens,
            seed=plan.facts.seed,
            sampling=self._request.sampling,
            stop_ids=self._stop_ids(plan, spec),
            priority=spec.priority,
            cache_salt=salt,
            cache_policy=spec.cache_policy,
            session_key=self._turn.lease.key if self._turn is not None else b"",
            retention_ttl_s=mesh.settings.session_ttl_s,
            head_block_hashes=route.head_hashes(ids, salt, num_head),
            arrived_s=self._hops.arrived_s,
            deadline_s=self._caller.deadline_s,
        )

    def _started(
        self, tenant: Tenant, spec: GenerationSpec, plan: Plan, live: LiveRequest
    ) -> gateway_pb2.GenerateResponse:
        engine = live.life.choices[0].engine
        started = gateway_pb2.Started(
            request_id=plan.facts.request_id,
            seed=plan.facts.seed,
            resumable=plan.is_resumable,
            model_revision=plan.facts.revision,
            system_fingerprint=engine.fingerprint if engine is not None else "",
            session_version=plan.session_version,
            trace_id=self._trace.trace_id,
            num_prompt_tokens=len(plan.prompt.ids),
        )
        if plan.is_resumable:
            claims = ResumeClaims(plan.max_tokens, plan.session_version)
            started.prompt_ids.extend(plan.prompt.ids)
            started.resume_token = make_resume_token(
                self._mesh.deployment_key, tenant, spec, plan.facts, claims
            )
        return gateway_pb2.GenerateResponse(started=started)

    # ends

    async def _complete(self, spec: GenerationSpec, plan: Plan, delivery: Delivery, end: Complete) -> None:
        """The session is saved before the caller hears that it is."""
        version = None
        if self._turn is not None:
            turn, self._turn = self._turn, None
            ids = (*plan.prompt.ids, *self._output_ids(0))
            version = await turn.save_for_good(ids, len(plan.prompt.ids), self._engine_id())
            self._end_facts.is_history_saved = version is not None
        for choice in end.choices:
            self._mesh.metrics.finishes.labels(reason=choice.finish.reason.name.lower()).inc()
        with self._trace.hop("deliver"):
            complete = complete_words(self._end_facts, end, version, self._mesh.clock())
            await delivery.send(gateway_pb2.GenerateResponse(complete=complete))

    def _keep_delivered(self, spec: GenerationSpec, plan: Plan, delivery: Delivery) -> None:
        """A cancelled turn keeps what its caller has; nobody waits for the saving."""
        if self._turn is None:
            return
        num_known = len(spec.resume.output_ids[0]) if spec.resume is not None else 0
        num_delivered = num_known + delivery.num_delivered[0]
        if num_delivered and not self._is_overdue():
            turn, self._turn = self._turn, None
            ids = (*plan.prompt.ids, *self._output_ids(0)[:num_delivered])
            turn.save_later(ids, len(plan.prompt.ids), self._engine_id())

    def _output_ids(self, choice: int) -> list[int]:
        assert self._end_facts.life is not None
        return self._end_facts.life.choices[choice].output_ids

    def _engine_id(self) -> str:
        assert self._end_facts.life is not None
        engine = self._end_facts.life.account.engine
        return engine.engine_id if engine is not None else ""

    def _is_overdue(self) -> bool:
        return self._caller.deadline_s is not None and self._mesh.clock() >= self._caller.deadline_s

    def _observe_tokens(self, priority: str) -> "TokensObserver":
        return TokensObserver(self._mesh, self._end_facts, priority)

    def _observe_end(self, route: Route, spec: GenerationSpec, life: RequestLife, priority: str) -> None:
        metrics, account = self._mesh.metrics, life.account
        metrics.queue.labels(priority=priority).observe(self._hops.spent(self._mesh.clock())[Stage.QUEUE])
        metrics.moves.inc(account.num_moves)
        metrics.cached_tokens.inc(account.num_cached)
        self._trace.describe(
            {
                "gen_ai.request.model": route.model,
                "gen_ai.usage.input_tokens": self._end_facts.num_prompt_tokens,
                "gen_ai.usage.output_tokens": sum(len(choice.output_ids) for choice in life.choices),
                "gen_ai.request.choice.count": spec.n,
                "pagemesh.cached_tokens": account.num_cached,
                "pagemesh.moves": account.num_moves,
                "pagemesh.priority": priority,
            }
        )

    def _close(self, outcome: str, error: MeshError | None) -> None:
        if self._turn is not None:
            self._turn.give_up_later()
            if error is not None:
                self._end_facts.is_history_saved = False
        self._cleanup.close()
        self._mesh.metrics.requests.labels(outcome=outcome).inc()
        self._mesh.metrics.elapsed.labels(outcome=outcome).observe(self._mesh.clock() - self._hops.arrived_s)
        self._trace.close(outcome, error)


class TokensObserver:
    """Measures each token event written."""

    def __init__(self, mesh: Mesh, end_facts: EndFacts, priority: str) -> None:
        self._ttft = mesh.metrics.ttft.labels(priority=priority)
        self._itl = mesh.metrics.itl.labels(priority=priority)
        self._tokens = mesh.metrics.tokens
        self._end_facts = end_facts

    def __call__(self, tokens: EmitTokens, now: float, before: float | None) -> None:
        self._tokens.inc(len(tokens.ids))
        if self._end_facts.first_token_s is None:
            self._end_facts.first_token_s = now
            self._ttft.observe(now - self._end_facts.hops.arrived_s)
        if before is not None:
            self._itl.observe(now - before)
