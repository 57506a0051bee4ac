"""A session's turn through the whole pipeline, between peers that answer at once: when and what is saved."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from pagemesh.v1 import gateway_pb2, tokenizer_pb2
from services.chassis.tasks import Tasks
from services.contract.errors import MeshError, Reason
from services.gateway.detokenizer import TokenTable
from services.gateway.generation import Caller, Generation
from services.gateway.generation_spec import SessionTurn
from services.gateway.identity import Identities, Tenant
from services.gateway.mesh import Mesh
from services.gateway.metrics import GatewayMetrics
from services.gateway.placement_client import ModelLimits
from services.gateway.request_words import Counts, EndCause, EngineFacts, Placement, Ticket, Tier
from services.gateway.running_requests import RunningRequests
from services.gateway.sessions import Sessions
from services.gateway.settings import GatewaySettings
from services.gateway.store.memory import MemoryStore
from services.gateway.store.protocol import LeaseOwner
from services.gateway.tokenizer_client import Encoded, Vocabulary

KEY = b"k" * 32
PROMPT, ANSWER = [1, 2, 3], [4, 5, 6, 7]
ENGINE = EngineFacts("a", "a-1", "f", "r", Tier.BIT_IDENTICAL)
DEFINITION = {
    "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)}},
    "decoder": {"type": "ByteLevel"},
}

Event = gateway_pb2.GenerateResponse
Write = Callable[[Event], Awaitable[None]]


class Tokenizers:
    """One model whose every prompt has the same ids."""

    def __init__(self) -> None:
        info = tokenizer_pb2.GetTokenizerInfoResponse(model="m", vocab_size=26)
        info.session_mode = tokenizer_pb2.SESSION_MODE_APPEND
        self._vocabulary = Vocabulary(info, TokenTable.from_definition(json.dumps(DEFINITION).encode()))

    async def wait_up(self, *_: object) -> None:
        return

    def models(self) -> list[str]:
        return ["m"]

    def vocabulary(self, _: str) -> Vocabulary:
        return self._vocabulary

    async def encode(self, *_: object) -> Encoded:
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
        self._end = end

    def admit(self, _: str, admission: Any) -> None:
        owner, choice, attempt = admission.owner, admission.choice, admission.attempt
        owner.admitted(choice, attempt, ENGINE)
        owner.tokens(choice, attempt, 0, ANSWER, None)
        if self._end is not None:
            owner.ended(choice, attempt, self._end, Counts(0, 7, 0, 0))

    def cancel(self, *_: object) -> None: ...


class Rig:
    """A gateway without sockets, and one session."""

    def __init__(self, end: EndCause | None = EndCause.LENGTH) -> None:
        clock = asyncio.get_running_loop().time
        self.tenant = Tenant("default", b"")
        self.tasks = Tasks()
        self.sessions = Sessions(MemoryStore(clock), KEY, lambda: "s")
        self.events: list[Event] = []
        self.mesh = Mesh(
            settings=GatewaySettings(),
            deployment_key=KEY,
            identities=Identities.anonymous(KEY),
            tokenizers=cast(Any, Tokenizers()),
            placement=cast(Any, Scheduler()),
            fleet=cast(Any, Engine(end)),
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
        """One turn. Raises as Generation does."""
        session_id = await self.sessions.open(self.tenant, "", "m")
        request = gateway_pb2.GenerateRequest(request_id="r1", max_tokens=max_tokens)
        request.session.id = session_id
        request.conversation.segments.add(role=gateway_pb2.ROLE_USER, content="hello")
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
    rig = Rig(EndCause.BAD_LOGITS)
    with pytest.raises(MeshError) as caught:
        await rig.run(max_tokens=50)
    assert caught.value.reason is Reason.BAD_LOGITS
    assert all(event.WhichOneof("event") != "complete" for event in rig.events)
    assert await rig.saved() == (0, ())


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
