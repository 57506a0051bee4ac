"""The gRPC face of the gateway: messages in, messages out, errors as status. No decisions of its own."""

import asyncio
from typing import Any

import grpc

from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2, scheduler_pb2
from services.chassis.telemetry import TRACEPARENT, traceparent_in
from services.contract.errors import MeshError, Reason, not_supported
from services.contract.status import abort
from services.gateway.access.identity import Tenant
from services.gateway.access.rate_limit import RateLimit
from services.gateway.access.salt import cache_salt
from services.gateway.delivery import WriteFn
from services.gateway.encoding import encode_prompt
from services.gateway.generation import Caller, Generation
from services.gateway.mesh import Mesh
from services.gateway.prompt_encoding import encode_request
from services.gateway.spec.validation import (
    check_limits,
    check_size,
    validate_count_tokens,
    validate_generate,
    validate_open_session,
    validate_release_session,
)

Context = grpc.aio.ServicerContext[Any, Any]

_EXPLAIN_REFUSALS = {
    scheduler_pb2.PLACE_REFUSAL_QUEUE_FULL: Reason.QUEUE_FULL,
    scheduler_pb2.PLACE_REFUSAL_TOO_LARGE: Reason.TOO_LONG,
    scheduler_pb2.PLACE_REFUSAL_DEADLINE: Reason.DEADLINE,
}


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers GatewayService."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._explain_limit = RateLimit(mesh.settings.explain_per_s, mesh.clock)
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_running = 0

    async def Generate(self, request: gateway_pb2.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        caller = _caller(context, self._mesh.clock())
        generation = Generation(self._mesh, request, caller, _writer(context))
        self._enter()
        try:
            await generation.run(draining() if self._is_draining else None)
        except MeshError as error:
            await abort(context, error, generation.receipt())
        finally:
            self._leave()

    async def OpenSession(
        self, request: gateway_pb2.OpenSessionRequest, context: Context
    ) -> gateway_pb2.OpenSessionResponse:
        tenant = self._authenticate(context)
        user_id, name = validate_open_session(request)
        vocabulary = await self._mesh.vocabulary(name)
        session_id = await self._mesh.sessions.open(tenant, user_id, vocabulary.info.model)
        return gateway_pb2.OpenSessionResponse(session_id=session_id, ttl_s=self._mesh.settings.session_ttl_s)

    async def ReleaseSession(
        self, request: gateway_pb2.ReleaseSessionRequest, context: Context
    ) -> gateway_pb2.ReleaseSessionResponse:
        tenant = self._authenticate(context)
        session_id, user_id = validate_release_session(request)
        key = await self._mesh.sessions.release(tenant, user_id, session_id)
        self._mesh.fleet.release(key)
        return gateway_pb2.ReleaseSessionResponse()

    async def CountTokens(
        self, request: gateway_pb2.CountTokensRequest, context: Context
    ) -> gateway_pb2.CountTokensResponse:
        self._authenticate(context)
        check_size(request.ByteSize(), self._mesh.settings.max_message_bytes)
        name, prompt = validate_count_tokens(request)
        vocabulary = await self._mesh.vocabulary(name)
        until_s = self._mesh.encode_until_s(_caller(context, self._mesh.clock()).deadline_s)
        encoded = await self._mesh.tokenizers.encode(
            vocabulary.info.model, encode_request(prompt), until_s, _trace(context)
        )
        return gateway_pb2.CountTokensResponse(num_tokens=len(encoded.ids))

    async def Explain(
        self, request: gateway_pb2.ExplainRequest, context: Context
    ) -> gateway_pb2.ExplainResponse:
        tenant = self._authenticate(context)
        self._explain_limit.spend(tenant.name)
        check_size(request.ByteSize(), self._mesh.settings.max_message_bytes)
        if request.request.HasField("session"):
            raise not_supported("request.session")
        num_prompt_tokens, enqueue = await self._enqueue_of(tenant, request.request, context)
        estimate = await self._mesh.placement.explain(enqueue)
        reason = _EXPLAIN_REFUSALS.get(estimate.refusal)
        if reason is not None:
            raise MeshError(reason, "a scheduler would refuse it now")
        return gateway_pb2.ExplainResponse(
            prompt_tokens=num_prompt_tokens,
            engine_id=estimate.engine_id,
            bucket_tokens=estimate.bucket_tokens,
            num_ahead=estimate.num_ahead,
            snapshot_age_ms=estimate.snapshot_age_us // 1000,
        )

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        self._authenticate(context)
        offers = self._mesh.placement.models()
        models = []
        for name in sorted({*self._mesh.tokenizers.models(), *offers}):
            model = gateway_pb2.Model(name=name)
            if (limits := offers.get(name)) is not None:
                model.revision = limits.revision
                model.max_model_len = min(limits.max_model_len, limits.max_pool_tokens)
                model.num_engines = limits.num_engines
                model.max_choices = limits.max_sequences
                model.vocab_size = limits.vocab_size
            models.append(model)
        return gateway_pb2.ListModelsResponse(models=models)

    async def drain(self, limit_s: float) -> None:
        """No new requests; running ones finish within the limit or end with a status."""
        self._is_draining = True
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            self._mesh.running.interrupt_all(draining())
            await self._idle.wait()

    async def _enqueue_of(
        self, tenant: Tenant, request: gateway_pb2.GenerateRequest, context: Context
    ) -> tuple[int, scheduler_pb2.Enqueue]:
        route = await self._mesh.route(request.model)
        spec = validate_generate(request, route.vocab_size)
        traceparent = traceparent_in(context.invocation_metadata())
        deadline_s = _caller(context, self._mesh.clock()).deadline_s
        prompt = await encode_prompt(self._mesh, route, spec, deadline_s=deadline_s, traceparent=traceparent)
        max_tokens = check_limits(spec, len(prompt.ids), route.limits, self._mesh.settings.default_max_tokens)
        salt = cache_salt(self._mesh.deployment_key, tenant, spec.cache_scope)
        enqueue = scheduler_pb2.Enqueue(
            model=route.model,
            tenant_key=tenant.key,
            priority=generation_pb2.Priority.Name(int(spec.priority)),
            num_sequences=spec.n,
            num_prompt_tokens=len(prompt.ids),
            max_output_tokens=max_tokens,
            head_block_hashes=route.head_hashes(prompt.ids, salt, self._mesh.settings.head_blocks),
        )
        return len(prompt.ids), enqueue

    def _authenticate(self, context: Context) -> Tenant:
        return self._mesh.identities.authenticate(_authorization(context))

    def _enter(self) -> None:
        self._num_running += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self._idle.set()


def draining() -> MeshError:
    """This process is shutting down; another may answer."""
    return MeshError(Reason.DRAINING, "this gateway is shutting down", retry_delay_s=0.1)


def _caller(context: Context, now: float) -> Caller:
    left_s = context.time_remaining()
    deadline_s = now + left_s if left_s is not None else None
    return Caller(_authorization(context), traceparent_in(context.invocation_metadata()), deadline_s)


def _writer(context: Context) -> WriteFn:
    async def write(response: gateway_pb2.GenerateResponse) -> None:
        try:
            await context.write(response)
        except grpc.aio.BaseError:
            # The call is over. A write under way learns it before gRPC cancels this task.
            raise asyncio.CancelledError from None

    return write


def _authorization(context: Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return None


def _trace(context: Context) -> tuple[tuple[str, str], ...]:
    traceparent = traceparent_in(context.invocation_metadata())
    return ((TRACEPARENT, traceparent),) if traceparent else ()
