"""Run streams against an engine that says what it should not, is another process, or is not there."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.stream import MessageStream
from services.chassis.tasks import Tasks
from services.gateway.life.request_words import (
    AdmitRefusal,
    ChoiceLogprobs,
    Counts,
    EndCause,
    EngineFacts,
    ReturnCause,
)
from services.gateway.peers.engine_fleet import EngineFleet
from services.gateway.peers.engine_link import Admission

Heard = list[tuple[Any, ...]]
Answer = Callable[[engine_pb2.Admit], engine_pb2.RunResponse | None]


class Bell:
    """Rung with everything that anybody notes."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._rung.clear()
                await self._rung.wait()


@dataclass(eq=False)
class Owner:
    """Notes what it hears."""

    bell: Bell
    heard: Heard = field(default_factory=list)

    def note(self, *event: Any) -> None:
        self.heard.append(event)
        self.bell.ring()

    def admitted(self, choice: int, attempt: int, engine: EngineFacts) -> None:
        self.note("admitted", choice, attempt, engine.boot_id)

    def admit_unsent(self, choice: int, attempt: int, is_reachable: bool) -> None:
        self.note("unsent", choice, attempt, is_reachable)

    def admit_refused(self, choice: int, attempt: int, refusal: AdmitRefusal, detail: str) -> None:
        self.note("refused", choice, attempt, refusal)

    def progress(self, choice: int, attempt: int, progress: engine_pb2.Progress) -> None:
        self.note("progress", choice, attempt)

    def tokens(
        self,
        choice: int,
        attempt: int,
        first_index: int,
        ids: Sequence[int],
        logprobs: Sequence[ChoiceLogprobs] | None,
    ) -> None:
        self.note("tokens", choice, attempt, first_index, list(ids), logprobs)

    def returned(self, choice: int, attempt: int, cause: ReturnCause, counts: Counts) -> None:
        self.note("returned", choice, attempt, cause)

    def ended(self, choice: int, attempt: int, cause: EndCause, counts: Counts) -> None:
        self.note("ended", choice, attempt, cause)

    def run_broken(self, choice: int, attempt: int) -> None:
        self.note("broken", choice, attempt)

    def engine_is_back(self, choice: int, attempt: int) -> None:
        self.note("back", choice, attempt)


class Engine(engine_pb2_grpc.EngineServiceServicer):
    """Says to each admit what the test wants; None ends the call."""

    def __init__(self, answer: Answer, bell: Bell) -> None:
        self.answer = answer
        self.bell = bell
        self.cancelled: list[int] = []
        self.num_calls = 0
        self.boot_ids = ["boot"]
        """Of each call in turn; the last goes on."""

    async def Run(self, requests: AsyncIterator[engine_pb2.RunRequest], context: Any) -> None:  # type: ignore[override]
        self.num_calls += 1
        boot_id = self.boot_ids[min(self.num_calls, len(self.boot_ids)) - 1]
        info = engine_pb2.EngineInfo(engine_id="e", boot_id=boot_id, fingerprint_hash="f")
        async with MessageStream.over_context(
            requests,
            context,
            heartbeat=engine_pb2.RunResponse(),
            hello=engine_pb2.RunResponse(hello=info),
        ) as stream:
            async for request in stream:
                self.cancelled += [cancel.handle for cancel in request.cancel]
                self.bell.ring()
                for admit in request.admit:
                    if (said := self.answer(admit)) is None:
                        return
                    stream.send(said)


@dataclass
class Rig:
    fleet: EngineFleet
    engine: Engine
    address: str
    reach: list[tuple[str, str, bool]]
    unknown: list[int]
    bell: Bell
    owner: Owner

    def admit(self, boot_id: str = "boot", choice: int = 0, address: str = "") -> None:
        words = lambda handle: engine_pb2.Admit(handle=handle)  # noqa: E731
        admission = Admission(self.owner, choice, 1, "e", boot_id, words)
        self.fleet.admit(address or self.address, admission)

    async def hear(self, *kinds: str) -> Heard:
        await self.bell.until(lambda: [event[0] for event in self.owner.heard][: len(kinds)] == list(kinds))
        return self.owner.heard


@asynccontextmanager
async def rig(answer: Answer) -> AsyncIterator[Rig]:
    bell = Bell()
    server, engine, tasks = grpc.aio.server(), Engine(answer, bell), Tasks()  # type: ignore[abstract]
    engine_pb2_grpc.add_EngineServiceServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reach: list[tuple[str, str, bool]] = []
    unknown: list[int] = []

    def note_reach(engine_id: str, boot_id: str, is_reachable: bool) -> None:
        reach.append((engine_id, boot_id, is_reachable))
        bell.ring()

    def note_unknown(num_tokens: int) -> None:
        unknown.append(num_tokens)
        bell.ring()

    fleet = EngineFleet(
        open_channel=grpc.aio.insecure_channel,
        hello=engine_pb2.RunHello(gateway_id="g", boot_id="gb"),
        tasks=tasks,
        rng=random.Random(1),
        on_reach=note_reach,
        on_unknown_tokens=note_unknown,
    )
    try:
        yield Rig(fleet, engine, f"127.0.0.1:{port}", reach, unknown, bell, Owner(bell))
    finally:
        await tasks.close()
        await server.stop(0)


def step(handle: int, ids: list[int], **columns: Any) -> engine_pb2.Step:
    return engine_pb2.Step(
        **{
            "handles": [handle],
            "attempts": [1],
            "first_output_indexes": [0],
            "num_ids": [len(ids)],
            "ids": ids,
            **columns,
        }
    )


async def test_parts_of_a_message_apply_in_their_order() -> None:
    def answer(admit: engine_pb2.Admit) -> engine_pb2.RunResponse:
        return engine_pb2.RunResponse(
            progress=[engine_pb2.Progress(handle=admit.handle)],
            step=step(admit.handle, [4, 5], num_logprobs=[1, 1], logprob_ids=[4, 5], logprobs=[-1, -2]),
            ended=[engine_pb2.Ended(handle=admit.handle, reason=engine_pb2.END_REASON_STOP)],
        )

    async with rig(answer) as r:
        r.admit()
        heard = await r.hear("admitted", "progress", "tokens", "ended")
        columns = [ChoiceLogprobs((4,), (-1.0,)), ChoiceLogprobs((5,), (-2.0,))]
        assert heard[2] == ("tokens", 0, 1, 0, [4, 5], columns)
        assert not r.reach


async def test_a_ticket_for_another_process_is_not_used() -> None:
    async with rig(lambda admit: engine_pb2.RunResponse()) as r:
        r.admit("an older boot")
        assert await r.hear("unsent") == [("unsent", 0, 1, True)]


async def test_an_engine_that_is_not_there_is_reported_and_its_admits_come_back() -> None:
    async with rig(lambda admit: engine_pb2.RunResponse()) as r:
        r.admit(address="127.0.0.1:1")
        assert await r.hear("unsent") == [("unsent", 0, 1, False)]
        assert r.reach == [("e", "boot", False)] and r.fleet.unreachable() == [("e", "boot")]


async def test_a_step_whose_columns_disagree_breaks_the_call_and_the_engine_is_dialled_again() -> None:
    async with rig(lambda admit: engine_pb2.RunResponse(step=step(admit.handle, [1], num_ids=[2]))) as r:
        r.admit()
        await r.hear("admitted", "broken")
        await r.bell.until(lambda: r.reach == [("e", "boot", False), ("e", "boot", True)])
        assert r.engine.num_calls == 2 and r.fleet.unreachable() == []
        assert len(r.owner.heard) == 2


async def test_who_lost_an_admit_hears_that_the_engine_had_not_died() -> None:
    async with rig(lambda admit: None) as r:
        r.admit()
        heard = await r.hear("admitted", "broken", "back")
        assert heard[1:] == [("broken", 0, 1), ("back", 0, 1)] and r.engine.num_calls == 2


async def test_another_process_at_the_address_is_not_the_one_that_was_lost() -> None:
    async with rig(lambda admit: None) as r:
        r.engine.boot_ids = ["boot", "next"]
        r.admit()
        await r.bell.until(lambda: r.reach == [("e", "boot", False), ("e", "next", True)])
        assert [event[0] for event in r.owner.heard] == ["admitted", "broken"]


async def test_an_engine_that_erred_has_crashed_though_it_lives() -> None:
    def fail(admit: engine_pb2.Admit) -> engine_pb2.RunResponse:
        raise RuntimeError("not this one")

    async with rig(fail) as r:
        r.admit()
        await r.bell.until(lambda: r.reach == [("e", "boot", False), ("e", "boot", True)])
        assert [event[0] for event in r.owner.heard] == ["admitted", "broken"]


async def test_tokens_of_a_handle_that_has_ended_are_only_counted() -> None:
    async with rig(lambda admit: engine_pb2.RunResponse(step=step(admit.handle + 7, [1, 2, 3]))) as r:
        r.admit()
        await r.hear("admitted")
        await r.bell.until(lambda: bool(r.unknown))
        assert r.unknown == [3] and len(r.owner.heard) == 1


async def test_a_cancel_reaches_what_was_sent_and_drops_what_was_not() -> None:
    async with rig(lambda admit: engine_pb2.RunResponse()) as r:
        r.admit(choice=0)
        r.fleet.cancel(r.address, r.owner, 0, 1)
        r.admit(choice=1)
        await r.hear("admitted")
        r.fleet.cancel(r.address, r.owner, 1, 1)
        r.fleet.cancel(r.address, r.owner, 9, 1)
        await r.bell.until(lambda: bool(r.engine.cancelled))
        assert r.engine.cancelled == [1] and [event[1] for event in r.owner.heard] == [1]
