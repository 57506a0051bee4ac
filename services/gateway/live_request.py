"""A request's life on the event loop: carries out its commands, tells it what happens, keeps its timer.

The only place where the state machine meets streams. It writes nothing to the caller: the delivery does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from pagemesh.v1 import engine_pb2, scheduler_pb2
from services.contract.errors import MeshError
from services.gateway.life.outbox import Outbox
from services.gateway.life.request import RequestLife
from services.gateway.life.request_words import (
    Admit,
    AdmitRefusal,
    Cancel,
    ChoiceLogprobs,
    Command,
    Complete,
    Counts,
    EmitTokens,
    EndCause,
    EngineFacts,
    Enqueue,
    Fail,
    Placement,
    PlaceRefusal,
    ReturnCause,
    Withdraw,
)
from services.gateway.observer import RequestObserver
from services.gateway.peers.engine_fleet import EngineFleet
from services.gateway.peers.engine_link import Admission
from services.gateway.peers.placement_client import PlacementClient
from services.gateway.peers.scheduler_link import Waiting
from services.gateway.request_terms import RequestTerms
from services.gateway.request_trace import RequestTrace


class LiveRequest:
    """Owns nothing that outlives `close`; after it, whatever still arrives is counted and dropped."""

    def __init__(
        self,
        *,
        life: RequestLife,
        terms: RequestTerms,
        outbox: Outbox,
        placement: PlacementClient,
        fleet: EngineFleet,
        trace: RequestTrace,
        observer: RequestObserver,
    ) -> None:
        self.life = life
        self.outbox = outbox
        self.end: Complete | Fail | None = None
        self.has_engine = False
        """An admit was sent at least once."""
        self.on_end: Callable[[Complete | Fail], None] | None = None
        self._terms = terms
        self._placement = placement
        self._fleet = fleet
        self._trace = trace
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._has_news = False
        self._news: asyncio.Future[None] | None = None
        """Of the one who waits for news: cheaper than an event, which is waited for with every token."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._todo: deque[Command] = deque()
        self._is_carrying_out = False
        self._waiting: dict[int, Waiting] = {}
        self._admitted_at: dict[tuple[int, int], str] = {}
        self._num_stale = 0

    async def wait_news(self) -> None:
        """Waits for something to write: an engine, tokens or the end."""
        if not self._has_news:
            self._news = self._loop.create_future()
            await self._news
        self._has_news = False

    def start(self) -> None:
        """Asks for a place."""
        self._placement.watch(self, self._terms.model)
        self._carry_out(self.life.start(self._loop.time()))

    def fail(self, error: MeshError) -> None:
        """Ends it from outside; what it has elsewhere is withdrawn and cancelled at once."""
        self._carry_out(self.life.fail(error, self._loop.time()))

    def close(self) -> None:
        """Nobody delivers it any more."""
        self._placement.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()

    def _tell_news(self) -> None:
        self._has_news = True
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # what schedulers say

    def placed(self, place_id: int, placement: Placement) -> None:
        self._trace.end(f"place {place_id}")
        self._carry_out(self.life.placed(place_id, placement, self._loop.time()))

    def queued(self, place_id: int) -> None:
        self.life.queued(place_id)

    def place_refused(self, place_id: int, refusal: PlaceRefusal, retry_delay_s: float | None) -> None:
        self._trace.end(f"place {place_id}", refusal.value)
        self._carry_out(self.life.place_refused(place_id, refusal, retry_delay_s, self._loop.time()))

    def place_broken(self, place_id: int) -> None:
        self._trace.end(f"place {place_id}", "broken")
        self._carry_out(self.life.place_broken(place_id, self._loop.time()))

    def serving(self, is_served: bool) -> None:
        self._carry_out(self.life.serving(is_served, self._loop.time()))

    # what engines say

    def admitted(self, choice: int, attempt: int, engine: EngineFacts) -> None:
        self._carry_out(self.life.admitted(choice, attempt, engine, self._loop.time()))
        self._observer.running(True)
        if not self.has_engine:
            self.has_engine = True
            self._tell_news()

    def admit_unsent(self, choice: int, attempt: int, is_reachable: bool) -> None:
        self._trace.end(f"run {choice} {attempt}", "unsent")
        self._carry_out(self.life.admit_unsent(choice, attempt, is_reachable, self._loop.time()))

    def admit_refused(self, choice: int, attempt: int, refusal: AdmitRefusal, detail: str) -> None:
        self._trace.end(f"run {choice} {attempt}", refusal.value)
        self._carry_out(self.life.admit_refused(choice, attempt, refusal, detail, self._loop.time()))

    def progress(self, choice: int, attempt: int, progress: engine_pb2.Progress) -> None:
        prefill_s = progress.prefill_us / 1e6
        self.life.progress(choice, attempt, progress.num_cached_tokens, prefill_s, self._loop.time())

    def tokens(
        self,
        choice: int,
        attempt: int,
        first_index: int,
        ids: Sequence[int],
        logprobs: Sequence[ChoiceLogprobs] | None,
    ) -> None:
        now = self._loop.time()
        commands = self.life.tokens(choice, attempt, first_index, ids, logprobs, now=now)
        if len(commands) == 1 and isinstance(commands[0], EmitTokens) and not self._is_carrying_out:
            self._emit(commands[0])  # nothing else followed: so it is with almost every token
        else:
            self._carry_out(commands)
        if self.life.account.num_stale != self._num_stale:
            self._observer.stale(self.life.account.num_stale - self._num_stale)
            self._num_stale = self.life.account.num_stale

    def returned(self, choice: int, attempt: int, cause: ReturnCause, counts: Counts) -> None:
        self._trace.end(f"run {choice} {attempt}", f"returned_{cause.value}")
        self._carry_out(self.life.returned(choice, attempt, cause, counts, self._loop.time()))

    def ended(self, choice: int, attempt: int, cause: EndCause, counts: Counts) -> None:
        self._trace.end(f"run {choice} {attempt}", cause.value)
        self._carry_out(self.life.ended(choice, attempt, cause, counts, self._loop.time()))

    def run_broken(self, choice: int, attempt: int) -> None:
        self._trace.end(f"run {choice} {attempt}", "broken")
        self._carry_out(self.life.run_broken(choice, attempt, self._loop.time()))

    def engine_is_back(self, choice: int, attempt: int) -> None:
        self.life.engine_is_back(choice, attempt)

    # commands

    def _carry_out(self, commands: list[Command]) -> None:
        """A command may bring an event about at once; what follows from that waits for its turn."""
        self._todo.extend(commands)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._todo:
                self._do(self._todo.popleft())
        finally:
            self._is_carrying_out = False
        if self.life.timer_s != self._timer_s:
            self._set_timer(self.life.timer_s)

    def _do(self, command: Command) -> None:
        match command:
            case EmitTokens():
                self._emit(command)
            case Enqueue():
                self._enqueue(command)
            case Withdraw():
                self._trace.end(f"place {command.place_id}", "withdrawn")
                waiting = self._waiting.pop(command.place_id, None)
                if waiting is not None:
                    self._placement.withdraw(waiting)
            case Admit():
                self._admit(command)
            case Cancel():
                address = self._admitted_at.get((command.choice, command.gateway_attempt))
                if address is not None:
                    self._fleet.cancel(address, self, command.choice, command.gateway_attempt)
            case Complete() | Fail():
                self.end = command
                self._tell_news()
                if self.on_end is not None:
                    self.on_end(command)

    def _emit(self, tokens: EmitTokens) -> None:
        self.outbox.add(tokens)
        self._tell_news()

    def _enqueue(self, command: Enqueue) -> None:
        attributes = {
            "pagemesh.num_sequences": command.num_sequences,
            "pagemesh.crashes": command.num_crashes,
        }
        traceparent = self._trace.begin(f"place {command.place_id}", "place", attributes)
        words = partial(self._enqueue_words, command, traceparent)
        waiting = Waiting(self, self._terms.model, command.place_id, words)
        self._waiting[command.place_id] = waiting
        self._observer.running(any(choice.is_out for choice in self.life.choices))
        self._placement.enqueue(waiting)

    def _admit(self, command: Admit) -> None:
        attempt, placement = command.attempt.gateway, command.placement
        self._admitted_at[command.choice, attempt] = placement.address
        attributes: dict[str, str | int] = {
            "pagemesh.choice": command.choice,
            "pagemesh.attempt": attempt,
            "pagemesh.engine": placement.engine_id,
        }
        traceparent = self._trace.begin(f"run {command.choice} {attempt}", "run", attributes)
        words = partial(self._admit_words, command, traceparent)
        boot_id = command.ticket.engine_boot_id
        admission = Admission(self, command.choice, attempt, placement.engine_id, boot_id, words)
        self._fleet.admit(placement.address, admission)

    def _enqueue_words(self, command: Enqueue, traceparent: str, handle: int) -> scheduler_pb2.Enqueue:
        return self._terms.enqueue(command, handle, traceparent, self._loop.time())

    def _admit_words(self, command: Admit, traceparent: str, handle: int) -> engine_pb2.Admit:
        return self._terms.admit(command, handle, traceparent, self._loop.time())

    def _set_timer(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = when_s
        self._timer = self._loop.call_at(when_s, self._tick) if when_s != inf else None

    def _tick(self) -> None:
        self._timer, self._timer_s = None, inf
        self._carry_out(self.life.tick(self._loop.time()))
