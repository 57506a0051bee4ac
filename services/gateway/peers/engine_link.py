"""The Run stream to one engine's address: admits and cancels one way, what becomes of them the other.

It hands what comes back to each admit's owner; it judges no tokens.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.backoff import Backoff
from services.chassis.stream import MessageStream, StreamBroken
from services.gateway.life.request_words import (
    AdmitRefusal,
    ChoiceLogprobs,
    Counts,
    EndCause,
    EngineFacts,
    ReturnCause,
)
from services.gateway.peers.engine_words import (
    account_of,
    admit_refusal,
    end_cause,
    engine_facts,
    is_consistent,
    return_cause,
    step_rows,
)

HELLO_S = 2.0
FORGET_S = 60.0
"""An address that nobody wants and that has not answered for so long is no longer dialled."""

RunStream = MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse]
AdmitWords = Callable[[int], engine_pb2.Admit]
"""Makes the admit's message for a handle, at the moment it is sent."""
ReachFn = Callable[[str, str, bool], None]
"""engine_id, engine_boot_id, is_reachable."""

logger = logging.getLogger(__name__)


class AdmitOwner(Protocol):
    """Who sent an admit and hears all that becomes of it, by choice and gateway attempt."""

    def admitted(self, choice: int, attempt: int, engine: EngineFacts) -> None: ...
    def admit_unsent(self, choice: int, attempt: int, is_reachable: bool) -> None: ...
    def admit_refused(self, choice: int, attempt: int, refusal: AdmitRefusal, detail: str) -> None: ...
    def progress(self, choice: int, attempt: int, progress: engine_pb2.Progress) -> None: ...
    def tokens(
        self,
        choice: int,
        attempt: int,
        first_index: int,
        ids: Sequence[int],
        logprobs: Sequence[ChoiceLogprobs] | None,
    ) -> None: ...
    def returned(self, choice: int, attempt: int, cause: ReturnCause, counts: Counts) -> None: ...
    def ended(self, choice: int, attempt: int, cause: EndCause, counts: Counts) -> None: ...
    def run_broken(self, choice: int, attempt: int) -> None: ...
    def engine_is_back(self, choice: int, attempt: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """One admit, from its command to its one end."""

    owner: AdmitOwner
    choice: int
    attempt: int
    engine_id: str
    engine_boot_id: str
    words: AdmitWords


class EngineLink:
    """The Run stream to one address, over breaks and restarts of what answers there."""

    def __init__(
        self,
        address: str,
        hello: engine_pb2.RunHello,
        backoff: Backoff,
        on_reach: ReachFn,
        on_unknown_tokens: Callable[[int], None],
    ) -> None:
        self.address = address
        self.engine: EngineFacts | None = None
        self._hello = hello
        self._backoff = backoff
        self._on_reach = on_reach
        self._on_unknown_tokens = on_unknown_tokens
        self._stream: RunStream | None = None
        self._pending: list[Admission] = []
        self._admissions: dict[int, Admission] = {}
        self._let_go: tuple[str, list[Admission]] = ("", [])
        """A process that fell silent, by boot_id, and what it had: if it comes back, it had not died."""
        self._last_handle = 0
        self.unreachable: tuple[str, str] | None = None
        """engine_id and boot_id last reported as out of reach."""
        self._retry_now = asyncio.Event()

    def admit(self, admission: Admission) -> None:
        self._pending.append(admission)
        self._retry_now.set()
        if self._stream is not None and self.engine is not None:
            self._send_pending(self._stream, self.engine)

    def cancel(self, owner: AdmitOwner, choice: int, attempt: int) -> None:
        """For an admit that has ended there is nothing to do."""
        for admission in self._pending:
            if _is_of(admission, owner, choice, attempt):
                self._pending.remove(admission)
                return
        for handle, admission in self._admissions.items():
            if _is_of(admission, owner, choice, attempt):
                self._send(engine_pb2.RunRequest(cancel=[engine_pb2.Cancel(handle=handle)]))
                return

    def release(self, session_key: bytes) -> None:
        release = engine_pb2.ReleaseRetention(session_key=session_key)
        self._send(engine_pb2.RunRequest(release=[release]))

    async def keep(self, stub: "engine_pb2_grpc.EngineServiceAsyncStub") -> None:
        """Dials until nobody wants the address any more."""
        loop = asyncio.get_running_loop()
        last_up_s = loop.time()
        while self._pending or loop.time() - last_up_s < FORGET_S:
            if await self._run_once(stub):
                last_up_s = loop.time()
            delay_s = self._backoff.next_delay_s()
            self._retry_now.clear()
            if not self._pending:
                await _wait(self._retry_now, delay_s)
            else:
                await asyncio.sleep(delay_s)

    async def _run_once(self, stub: "engine_pb2_grpc.EngineServiceAsyncStub") -> bool:
        """One call from its hello to its end; False if no hello came."""
        hello = engine_pb2.RunRequest(hello=self._hello)
        call = stub.Run()  # without an iterator: messages are written one by one
        stream = RunStream.over_call(call, heartbeat=engine_pb2.RunRequest(), hello=hello)
        try:
            first = await _first(stream)
            if first is None or not first.HasField("hello"):
                self._refuse_pending(stream.reason or "no hello")
                return False
            self._open(stream, first)
            async for message in stream:
                if not is_consistent(message.step):
                    stream.close("a step whose columns do not agree")
                    break
                self._receive(message)
            return True
        finally:
            # The call is cancelled before anything else learns of it: nothing of it can surface any more.
            stream.close()
            self._down(stream)
            await stream.wait_closed()

    def _open(self, stream: RunStream, first: engine_pb2.RunResponse) -> None:
        self._backoff.reset()
        self._stream, self.engine = stream, engine_facts(first.hello)
        if self.unreachable is not None:
            self.unreachable = None
            self._on_reach(self.engine.engine_id, self.engine.boot_id, True)
        logger.info("run stream is up", extra={"engine_id": self.engine.engine_id, "address": self.address})
        (boot_id, admissions), self._let_go = self._let_go, ("", [])
        if boot_id == self.engine.boot_id:
            for admission in admissions:
                admission.owner.engine_is_back(admission.choice, admission.attempt)
        self._send_pending(stream, self.engine)

    def _down(self, stream: RunStream) -> None:
        engine, self._stream, self.engine = self.engine, None, None
        if engine is None:
            return
        logger.warning(
            "run stream is down",
            extra={"engine_id": engine.engine_id, "cause": stream.reason, "num_moved": len(self._admissions)},
        )
        self._report_unreachable(engine.engine_id, engine.boot_id)
        admissions, self._admissions = list(self._admissions.values()), {}
        if stream.was_let_go:
            self._let_go = engine.boot_id, admissions
        for admission in admissions:
            admission.owner.run_broken(admission.choice, admission.attempt)

    def _refuse_pending(self, reason: str) -> None:
        if self._pending:
            logger.warning("engine cannot be reached", extra={"address": self.address, "cause": reason})
        pending, self._pending = self._pending, []
        for engine_id, boot_id in {(admission.engine_id, admission.engine_boot_id) for admission in pending}:
            self._report_unreachable(engine_id, boot_id)
        for admission in pending:
            admission.owner.admit_unsent(admission.choice, admission.attempt, False)

    def _report_unreachable(self, engine_id: str, boot_id: str) -> None:
        if self.unreachable != (engine_id, boot_id):
            self.unreachable = (engine_id, boot_id)
            self._on_reach(engine_id, boot_id, False)

    def _send_pending(self, stream: RunStream, engine: EngineFacts) -> None:
        pending, self._pending = self._pending, []
        for admission in pending:
            if admission.engine_boot_id != engine.boot_id:
                admission.owner.admit_unsent(admission.choice, admission.attempt, True)
                continue
            self._last_handle += 1
            message = engine_pb2.RunRequest(admit=[admission.words(self._last_handle)])
            try:
                stream.send(message)
            except StreamBroken:
                admission.owner.admit_unsent(admission.choice, admission.attempt, False)
                continue
            self._admissions[self._last_handle] = admission
            admission.owner.admitted(admission.choice, admission.attempt, engine)

    def _send(self, message: engine_pb2.RunRequest) -> None:
        """What a stream that is down would have carried has no object any more."""
        if self._stream is not None and self._stream.is_open:
            self._stream.send(message)

    def _receive(self, message: engine_pb2.RunResponse) -> None:
        """Parts apply in the order of their numbers."""
        for refused in message.refused:
            if (admission := self._admissions.pop(refused.handle, None)) is not None:
                refusal = admit_refusal(refused)
                admission.owner.admit_refused(admission.choice, admission.attempt, refusal, refused.detail)
        for progress in message.progress:
            if (admission := self._admissions.get(progress.handle)) is not None:
                admission.owner.progress(admission.choice, admission.attempt, progress)
        if message.HasField("step"):
            self._receive_step(message.step)
        for returned in message.returned:
            if (admission := self._admissions.pop(returned.handle, None)) is not None:
                cause, counts = return_cause(returned), account_of(returned.counts)
                admission.owner.returned(admission.choice, admission.attempt, cause, counts)
        for ended in message.ended:
            if (admission := self._admissions.pop(ended.handle, None)) is not None:
                admission.owner.ended(
                    admission.choice, admission.attempt, end_cause(ended), account_of(ended.counts)
                )

    def _receive_step(self, step: engine_pb2.Step) -> None:
        """The attempt is the row's own: its owner judges it."""
        for handle, attempt, first_index, ids, logprobs in step_rows(step):
            admission = self._admissions.get(handle)
            if admission is None:
                self._on_unknown_tokens(len(ids))
            else:
                admission.owner.tokens(admission.choice, attempt, first_index, ids, logprobs)


def _is_of(admission: Admission, owner: AdmitOwner, choice: int, attempt: int) -> bool:
    return admission.owner is owner and admission.choice == choice and admission.attempt == attempt


async def _first(stream: RunStream) -> engine_pb2.RunResponse | None:
    try:
        async with asyncio.timeout(HELLO_S):
            return await anext(stream, None)
    except TimeoutError:
        return None


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
