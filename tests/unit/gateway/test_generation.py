"""A session's turn through the whole pipeline, between peers that answer at once: when and what is saved."""

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from pagemesh.v1 import gateway_pb2, tokenizer_pb2
from services.chassis.tasks import Tasks
from services.contract.errors import MeshError, Reason
from services.gateway.access.identity import Identities, Tenant
from services.gateway.generation import Caller, Generation
from services.gateway.history.sessions import Sessions
from services.gateway.history.store.memory import MemoryStore
from services.gateway.history.store.protocol import LeaseOwner
from services.gateway.life.request_words import Counts, EndCause, EngineFacts, Placement, Ticket, Tier
from services.gateway.mesh import Mesh
from services.gateway.metrics import GatewayMetrics
from services.gateway.peers.scheduler_words import ModelLimits
from services.gateway.peers.tokenizer_client import Encoded, Vocabulary
from services.gateway.running_requests import RunningRequests
from services.gateway.settings import GatewaySettings
from services.gateway.spec.generation_spec import SessionTurn
from services.gateway.text.detokenizer import TokenTable

KEY = b"k" * 32
PROMPT, ANSWER = [1, 2, 3], [4, 5, 6, 7]
ENGINE = EngineFacts("a", "a-1", "f", "the engine's own", Tier.BIT_IDENTICAL)
DEFINITION = {
    "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)}},
    "decoder": {"type": "ByteLevel"},
}

Event = gateway_pb2.GenerateResponse
Write = Callable[[Event], Awaitable[None]]


class Tokenizers:
    """One model whose every prompt has the same ids."""

    def __init__(self, mode: tokenizer_pb2.SessionMode) -> None:
        info = tokenizer_pb2.GetTokenizerInfoResponse(model="m", vocab_size=26)
        info.session_mode = mode
        self.requests: list[tokenizer_pb2.EncodeRequest] = []
        self.refusal: MeshError | None = None
        self._vocabulary = Vocabulary(info, TokenTable.from_definition(json.dumps(DEFINITION).encode()))

    async def wait_up(self, *_: object) -> None:
        return

    def models(self) -> list[str]:
        return ["m"]

    def vocabulary(self, _: str) -> Vocabulary:
        return self._vocabulary

    async def encode(self, _: str, request: tokenizer_pb2.EncodeRequest, *__: object) -> Encoded:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return Encoded(PROMPT, 0, self._vocabulary)


class Scheduler:
    """Has credit for everything."""

    async def wait_limits(self, _: str) -> ModelLimits:
        return ModelLimits("r", 1, 100, 100, 8, 26, 16)

    def watch(self, *_: object) -> None: ...
    def unwatch(self, *_: object) -> None: ...
    def withdraw(self, *_: object) -> None: ...

    def enqueue(self, waiting: Any) -> None:
        ticket = Ticket("s", 1, ENGINE.boot_id, 1, 1)
        waiting.owner.placed(waiting.place_id, Placement("a", "a:1", (ticket,), 0, "none"))


class Engine:
    """Draws the answer in one step and then says how it ended, if it does."""

    def __init__(self, end: EndCause | None) -> None:
        self.end = end
        self.drawn = ANSWER
        self._admissions: list[Any] = []

    def admit(self, _: str, admission: Any) -> None:
        owner, choice, attempt = admission.owner, admission.choice, admission.attempt
        self._admissions.append(admission)
        owner.admitted(choice, attempt, ENGINE)
        owner.tokens(choice, attempt, 0, self.drawn, None)
        if self.end is not None:
            self.say_end(self.end)

    def say_end(self, cause: EndCause) -> None:
        """Of the last admission."""
        last = self._admissions[-1]
        last.owner.ended(last.choice, last.attempt, cause, Counts(0, 7, 0, 0))

    def cancel(self, *_: object) -> None: ...


class Rig:
    """A gateway without sockets, and one session."""

    def __init__(
        self,
        end: EndCause | None = EndCause.LENGTH,
        mode: tokenizer_pb2.SessionMode = tokenizer_pb2.SESSION_MODE_APPEND,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.tenant = Tenant("default", b"")
        self.tasks = Tasks()
        self.tokenizers = Tokenizers(mode)
        self.engine = Engine(end)
        self.sessions = Sessions(MemoryStore(clock), KEY, lambda: "s")
        self.events: list[Event] = []
        self.mesh = Mesh(
            settings=GatewaySettings(),
            deployment_key=KEY,
            identities=Identities.anonymous(KEY),
            tokenizers=cast(Any, self.tokenizers),
            placement=cast(Any, Scheduler()),
            fleet=cast(Any, self.engine),
            sessions=self.sessions,
            running=RunningRequests(clock),
            tasks=self.tasks,
            metrics=GatewayMetrics(CollectorRegistry()),
            tracer=TracerProvider().get_tracer("test"),
            rng=random.Random(0),
            clock=clock,
            ready_by_s=0.0,
        )

    async def run(self, write: Write | None = None, max_tokens: int = len(ANSWER)) -> None:
        """The first turn. Raises as Generation does."""
        await self.sessions.open(self.tenant, "", "m")
        await self.turn("r1", ["hello"], write, max_tokens=max_tokens)

    async def turn(
        self, request_id: str, contents: list[str], write: Write | None = None, **fields: Any
    ) -> None:
        """A turn of question, answer, question ... Raises as Generation does."""
        request = gateway_pb2.GenerateRequest(request_id=request_id, **fields)
        request.session.id = "s"
        roles = itertools.cycle((gateway_pb2.ROLE_USER, gateway_pb2.ROLE_ASSISTANT))
        for role, content in zip(roles, contents, strict=False):
            request.conversation.segments.add(role=role, content=content)
        await Generation(self.mesh, request, Caller(None, "", None), write or self.keep).run()

    async def keep(self, event: Event) -> None:
        self.events.append(event)

    async def saved(self) -> tuple[int, tuple[int, ...]]:
        """Version and ids that the next turn would follow, once nothing more is being saved."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert not len(self.tasks)
        lease = await self.sessions.begin_turn(self.tenant, SessionTurn("s", ""), LeaseOwner("next", 0), "m")
        await self.sessions.abandon(lease)
        return lease.session.version, lease.history


async def test_a_request_that_is_refused_at_once_is_counted_and_traced() -> None:
    rig, spans, provider = Rig(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    registry = CollectorRegistry()
    mesh = replace(rig.mesh, tracer=provider.get_tracer("test"), metrics=GatewayMetrics(registry))
    generation = Generation(mesh, gateway_pb2.GenerateRequest(), Caller(None, "", None), rig.keep)
    with pytest.raises(MeshError):
        await generation.run(MeshError(Reason.DRAINING, "shutting down"))
    assert registry.get_sample_value("pagemesh_gateway_requests_total", {"outcome": "draining"}) == 1
    (span,) = spans.get_finished_spans()
    assert span.attributes is not None and span.attributes["error.type"] == "DRAINING"


async def test_a_turn_is_saved_before_its_end_is_told() -> None:
    rig = Rig()
    saved_at_end = []

    async def write(event: Event) -> None:
        if event.WhichOneof("event") == "complete":
            assert event.complete.receipt.history_saved
            saved_at_end.append((event.complete.session_version, await rig.saved()))

    await rig.run(write)
    assert saved_at_end == [(1, (1, (*PROMPT, *ANSWER)))]


async def test_a_turn_that_fails_saves_nothing() -> None:
    rig = Rig(end=None)

    async def write(event: Event) -> None:
        await rig.keep(event)
        if event.HasField("token"):
            rig.engine.say_end(EndCause.BAD_LOGITS)

    with pytest.raises(MeshError) as caught:
        await rig.run(write, max_tokens=50)
    assert caught.value.reason is Reason.BAD_LOGITS
    assert [event.WhichOneof("event") for event in rig.events] == ["started", "token"]
    assert await rig.saved() == (0, ())


async def test_a_turn_that_fails_before_its_writer_came_to_started_has_no_event() -> None:
    rig = Rig(EndCause.BAD_LOGITS)
    with pytest.raises(MeshError):
        await rig.run(max_tokens=50)
    assert rig.events == [] and await rig.saved() == (0, ())


@pytest.mark.parametrize(
    ("last", "saved"), [("started", (0, ())), ("token", (1, (*PROMPT, *ANSWER)))], ids=["nothing", "all"]
)
async def test_a_cancelled_turn_saves_what_its_caller_has(last: str, saved: object) -> None:
    """The reader accepts events up to the named one, of a turn whose tokens are all there."""
    rig, accepted = Rig(end=None), asyncio.Event()

    async def write(event: Event) -> None:
        if accepted.is_set():
            await asyncio.get_running_loop().create_future()
        if event.WhichOneof("event") == last:
            accepted.set()

    task = asyncio.ensure_future(rig.run(write, max_tokens=50))
    await accepted.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rig.saved() == saved


async def test_where_the_template_only_appends_a_turn_follows_the_history() -> None:
    rig = Rig()
    await rig.run()
    await rig.turn("r2", ["and then?"], max_tokens=len(ANSWER))
    assert list(rig.tokenizers.requests[1].continuation.tail_ids) == [*PROMPT, *ANSWER]
    complete = rig.events[-1].complete
    assert (complete.receipt.session_mode, complete.session_version) == ("append", 2)
    assert complete.usage.prompt_tokens == len(PROMPT) + len(ANSWER) + len(PROMPT)


async def test_where_the_template_rewrites_turns_each_is_the_whole_conversation() -> None:
    rig = Rig(mode=tokenizer_pb2.SESSION_MODE_RERENDER)
    await rig.run()
    await rig.turn("r2", ["hello", "an answer", "and then?"], max_tokens=len(ANSWER))
    assert not any(request.HasField("continuation") for request in rig.tokenizers.requests)
    complete = rig.events[-1].complete
    assert (complete.receipt.session_mode, complete.session_version) == ("rerender", 2)
    assert complete.usage.prompt_tokens == len(PROMPT)
    with pytest.raises(MeshError) as caught:
        await rig.turn("r3", ["and then?"])
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_FIELD, "conversation.segments")
    assert (await rig.saved())[0] == 2


async def test_turns_that_cannot_be_appended_are_refused_by_the_callers_own_field() -> None:
    rig = Rig()
    await rig.run()
    rig.tokenizers.refusal = MeshError(Reason.NOT_SUPPORTED, "no", field="continuation")
    with pytest.raises(MeshError) as caught:
        await rig.turn("r2", ["and then?"])
    assert (caught.value.reason, caught.value.field) == (Reason.NOT_SUPPORTED, "conversation.segments")


async def test_the_revision_told_is_that_of_the_engine_that_serves() -> None:
    rig = Rig()
    await rig.run()
    assert rig.events[0].started.model_revision == ENGINE.revision


async def test_a_cancelled_turn_that_is_resumed_is_saved_whole_in_its_own_place() -> None:
    rig, first = Rig(), asyncio.Event()
    started: list[Event] = []

    async def write(event: Event) -> None:
        started.append(event)
        if event.WhichOneof("event") == "token":
            first.set()

    rig.engine.drawn = ANSWER[:2]
    rig.engine.end = None
    task = asyncio.ensure_future(rig.run(write))
    await first.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rig.saved() == (1, (*PROMPT, *ANSWER[:2]))
    rig.engine.drawn, rig.engine.end = ANSWER, EndCause.LENGTH
    told = started[0].started
    resume = gateway_pb2.Resume(
        next_seq_id=2,
        prompt_ids=told.prompt_ids,
        choices=[gateway_pb2.ResumeChoice(output_ids=ANSWER[:2])],
        resume_token=told.resume_token,
    )
    await rig.turn("r1", ["hello"], max_tokens=len(ANSWER), client_attempt=1, seed=told.seed, resume=resume)
    assert [event.seq_id for event in rig.events] == [2, 3, 4]
    complete = rig.events[-1].complete
    assert complete.receipt.history_saved and complete.session_version == 1
    assert await rig.saved() == (1, (*PROMPT, *ANSWER))
