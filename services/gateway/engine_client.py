"""Run streams to engines: one per address, dialled when a ticket names it, kept while the engine lives.

It carries admits and cancels one way and hands what comes back to each admit's owner; it judges no tokens.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.backoff import Backoff
from services.chassis.stream import MessageStream, StreamBroken
from services.chassis.tasks import Tasks
from services.gateway.request_words import (
    AdmitRefusal,
    ChoiceLogprobs,
    Counts,
    EndCause,
    EngineFacts,
    ReturnCause,
    Tier,
)

HELLO_S = 2.0
FORGET_S = 60.0
"""An address that nobody wants and that has not answered for so long is no longer dialled."""

RunStream = MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse]
AdmitWords = Callable[[int], engine_pb2.Admit]
"""Makes the admit's message for a handle, at the moment it is sent."""

logger = logging.getLogger(__name__)

_REFUSALS = {
    engine_pb2.RUN_REFUSAL_WRONG_BOOT: AdmitRefusal.WRONG_BOOT,
    engine_pb2.RUN_REFUSAL_DRAINING: AdmitRefusal.DRAINING,
    engine_pb2.RUN_REFUSAL_NO_ROOM: AdmitRefusal.NO_ROOM,
    engine_pb2.RUN_REFUSAL_STALE: AdmitRefusal.STALE,
}
_RETURNS = {
    engine_pb2.RETURN_REASON_SUSPECT: ReturnCause.SUSPECT,
    engine_pb2.RETURN_REASON_DRAINING: ReturnCause.DRAINING,
}
_ENDS = {
    engine_pb2.END_REASON_STOP: EndCause.STOP,
    engine_pb2.END_REASON_LENGTH: EndCause.LENGTH,
    engine_pb2.END_REASON_CANCELLED: EndCause.CANCELLED,
    engine_pb2.END_REASON_DEADLINE: EndCause.DEADLINE,
    engine_pb2.END_REASON_BAD_LOGITS: EndCause.BAD_LOGITS,
}
_TIERS: dict[int, Tier] = {int(tier): tier for tier in Tier}


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


@dataclass(frozen=True, slots=True)
class Admission:
    """One admit, from its command to its one end."""

    owner: AdmitOwner
    choice: int
    attempt: int
    engine_id: str
    engine_boot_id: str
    words: AdmitWords


ReachFn = Callable[[str, str, bool], None]
"""engine_id, engine_boot_id, is_reachable."""


class EngineFleet:
    """All Run streams of this gateway."""

    def __init__(
        self,
        *,
        open_channel: Callable[[str], grpc.aio.Channel],
        hello: engine_pb2.RunHello,
        tasks: Tasks,
        rng: random.Random,
        on_reach: ReachFn,
        on_unknown_tokens: Callable[[int], None],
    ) -> None:
        self._open_channel = open_channel
        self._hello = hello
        self._tasks = tasks
        self._rng = rng
        self._on_reach = on_reach
        self._on_unknown_tokens = on_unknown_tokens
        self._links: dict[str, EngineLink] = {}

    def admit(self, address: str, admission: Admission) -> None:
        """Sends it as soon as there is a stream to the process that its ticket names."""
        link = self._links.get(address)
        if link is None:
            backoff = Backoff(self._rng)
            link = EngineLink(address, self._hello, backoff, self._on_reach, self._on_unknown_tokens)
            self._links[address] = link
            self._tasks.spawn(self._keep(link), f"run stream to {address}", critical=True)
        link.admit(admission)

    def cancel(self, address: str, owner: AdmitOwner, choice: int, attempt: int) -> None:
        """Ends an admit, sent or not."""
        link = self._links.get(address)
        if link is not None:
            link.cancel(owner, choice, attempt)

    def release(self, session_key: bytes) -> None:
        """A session ended: every engine may give its blocks back."""
        for link in self._links.values():
            link.release(session_key)

    def unreachable(self) -> list[tuple[str, str]]:
        """engine_id and boot_id of those that do not answer, for a scheduler that has just come up."""
        return [link.unreachable for link in self._links.values() if link.unreachable is not None]

    async def _keep(self, link: "EngineLink") -> None:
        channel = self._open_channel(link.address)
        try:
            await link.keep(engine_pb2_grpc.EngineServiceStub(channel))
            if link.unreachable is not None:
                # No longer judged: whoever places there again makes this gateway dial again.
                self._on_reach(*link.unreachable, True)
        finally:
            self._links.pop(link.address, None)
            await channel.close()


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
                if not _is_consistent(message.step):
                    stream.close("a step whose columns do not agree")
                    break
                self._receive(message)
            return True
        finally:
            # The call is cancelled before anything else learns of it: nothing of it can surface any more.
            stream.close()
            self._down(stream.reason or "")
            await stream.wait_closed()

    def _open(self, stream: RunStream, first: engine_pb2.RunResponse) -> None:
        self._backoff.reset()
        self._stream, self.engine = stream, _facts(first.hello)
        if self.unreachable is not None:
            self.unreachable = None
            self._on_reach(self.engine.engine_id, self.engine.boot_id, True)
        logger.info("run stream is up", extra={"engine_id": self.engine.engine_id, "address": self.address})
        self._send_pending(stream, self.engine)

    def _down(self, reason: str) -> None:
        engine, self._stream, self.engine = self.engine, None, None
        if engine is None:
            return
        logger.warning(
            "run stream is down",
            extra={"engine_id": engine.engine_id, "cause": reason, "num_moved": len(self._admissions)},
        )
        self._report_unreachable(engine.engine_id, engine.boot_id)
        admissions, self._admissions = self._admissions, {}
        for admission in admissions.values():
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
        for refused in message.refused:
            admission = self._admissions.pop(refused.handle, None)
            if admission is not None:
                refusal = _REFUSALS.get(refused.refusal, AdmitRefusal.INVALID)
                admission.owner.admit_refused(admission.choice, admission.attempt, refusal, refused.detail)
        for progress in message.progress:
            admission = self._admissions.get(progress.handle)
            if admission is not None:
                admission.owner.progress(admission.choice, admission.attempt, progress)
        if message.HasField("step"):
            self._receive_step(message.step)
        for returned in message.returned:
            admission = self._admissions.pop(returned.handle, None)
            if admission is not None:
                cause = _RETURNS.get(returned.reason, ReturnCause.NO_STEP)
                admission.owner.returned(admission.choice, admission.attempt, cause, _counts(returned.counts))
        for ended in message.ended:
            admission = self._admissions.pop(ended.handle, None)
            if admission is not None:
                cause_of_end = _ENDS.get(ended.reason, EndCause.LENGTH)
                admission.owner.ended(
                    admission.choice, admission.attempt, cause_of_end, _counts(ended.counts)
                )

    def _receive_step(self, step: engine_pb2.Step) -> None:
        ids = list(step.ids)
        logprobs = _logprobs(step) if step.num_logprobs else None
        begin = 0
        rows = zip(step.handles, step.attempts, step.first_output_indexes, step.num_ids, strict=True)
        for handle, attempt, first_index, num_ids in rows:
            end = begin + num_ids
            admission = self._admissions.get(handle)
            if admission is None:
                self._on_unknown_tokens(num_ids)
            else:
                row_logprobs = _asked(logprobs[begin:end]) if logprobs is not None else None
                admission.owner.tokens(admission.choice, attempt, first_index, ids[begin:end], row_logprobs)
            begin = end


def _is_of(admission: Admission, owner: AdmitOwner, choice: int, attempt: int) -> bool:
    return admission.owner is owner and admission.choice == choice and admission.attempt == attempt


def _is_consistent(step: engine_pb2.Step) -> bool:
    num_rows = len(step.handles)
    columns = (step.attempts, step.first_output_indexes, step.num_ids)
    return (
        all(len(column) == num_rows for column in columns)
        and sum(step.num_ids) == len(step.ids)
        and len(step.num_logprobs) in (0, len(step.ids))
        and sum(step.num_logprobs) == len(step.logprob_ids) == len(step.logprobs)
    )


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


def _facts(info: engine_pb2.EngineInfo) -> EngineFacts:
    return EngineFacts(
        engine_id=info.engine_id,
        boot_id=info.boot_id,
        fingerprint=info.fingerprint_hash,
        revision=info.fingerprint.model_revision,
        tier=_TIERS.get(info.tier, Tier.CONTINUED),
    )


def _counts(counts: engine_pb2.Counts) -> Counts:
    return Counts(
        num_cached=counts.num_cached_tokens,
        num_computed=counts.num_computed_tokens,
        num_recomputed=counts.num_recomputed_tokens,
        num_preemptions=counts.num_preemptions,
    )


def _asked(columns: list[ChoiceLogprobs]) -> list[ChoiceLogprobs] | None:
    """None for a row that shares a step with one that asked for log-probabilities, but did not."""
    return columns if any(column.ids for column in columns) else None


def _logprobs(step: engine_pb2.Step) -> list[ChoiceLogprobs]:
    """One per id of the step; ids that asked for none have empty ones."""
    ids, values = tuple(step.logprob_ids), tuple(step.logprobs)
    columns, begin = [], 0
    for num in step.num_logprobs:
        columns.append(ChoiceLogprobs(ids[begin : begin + num], values[begin : begin + num]))
        begin += num
    return columns
