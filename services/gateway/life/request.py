"""The life of one request: the gateway alone holds its tokens, every admit is a new attempt, it ends once.

A state machine: events and the time come in, commands come out. It knows no sockets, tasks or protobuf.
"""

from collections.abc import Callable, Sequence
from math import inf

from services.contract.errors import MeshError, Reason
from services.gateway.life.account import Account
from services.gateway.life.choice import Choice, Phase
from services.gateway.life.hop_clock import HopClock, Stage
from services.gateway.life.limits import Limits, deadline_passed
from services.gateway.life.placing import Placing
from services.gateway.life.request_words import (
    Admit,
    AdmitRefusal,
    Attempt,
    Cancel,
    ChoiceEnd,
    ChoiceLogprobs,
    Command,
    Complete,
    Counts,
    EmitTokens,
    EndCause,
    EngineFacts,
    Fail,
    JitterFn,
    Placement,
    PlaceRefusal,
    Promise,
    RequestSpec,
    ReturnCause,
    Tier,
    Withdraw,
)
from services.gateway.text.output_text import OutputText

CRASH_LIMIT = 3
SETTLE_S = 0.25
"""How long a finished choice waits for its engine's account."""


class RequestLife:
    """All choices of one request from the first enqueue to the one end.

    Every event method returns the commands that follow from it. After the end all events are ignored.
    `timer_s` is when `tick` wants to be called next, `inf` for never.
    """

    def __init__(
        self,
        spec: RequestSpec,
        texts: Sequence[OutputText],
        hops: HopClock,
        clock: Callable[[], float],
        jitter: JitterFn,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self.hops = hops
        self.account = Account()
        self.choices = [Choice(index, text) for index, text in enumerate(texts)]
        self.timer_s = inf
        self.is_ended = False
        self._commands: list[Command] = []
        self._limits = Limits(spec)
        self._placing = Placing(spec, self._limits, jitter)

    def start(self, now: float) -> list[Command]:
        """Replays what the caller has, then asks for a place for all choices which that does not finish."""
        self._limits.start(now)
        for choice, known_ids in zip(self.choices, self._spec.known_output_ids, strict=True):
            choice.preferred_engine_id = self._spec.preferred_engine_id
            self._replay(choice, known_ids)
        if any(self._spec.known_output_ids):
            self.account.tier = self._spec.known_tier
        waiting = [choice for choice in self.choices if choice.phase is Phase.IDLE]
        if waiting:
            self._commands.append(self._placing.enqueue(waiting))
        return self._after(now)

    def promise(self) -> Promise:
        """What holds from here on: of the engine that goes on, else of what is known."""
        going_on = next((choice for choice in self.choices if choice.engine is not None), None)
        if going_on is None or going_on.engine is None:
            return Promise(self._spec.known_fingerprint, self.account.tier, "")
        engine = going_on.engine
        tier = Tier.CONTINUED if going_on.has_changed_fingerprint else engine.tier
        return Promise(engine.fingerprint, max(self.account.tier, tier), engine.revision)

    # a scheduler's words

    def placed(self, place_id: int, placement: Placement, now: float) -> list[Command]:
        """A scheduler gave tickets. One that crossed a withdrawal is unknown here and ignored."""
        choices = self._placing.pop(place_id)
        if choices is None or self.is_ended:
            return self._take()
        if len(placement.tickets) != len(choices):
            return self._fail(MeshError(Reason.INTERNAL, "a scheduler gave the wrong number of tickets"), now)
        self._placing.placed()
        self.account.placed(placement.queue_reason)
        for choice, ticket in zip(choices, placement.tickets, strict=True):
            choice.move(Phase.PLACED)
            choice.begin_attempt(placement)
            attempt = Attempt(self._spec.client_attempt, choice.gateway_attempt)
            admit = Admit(choice.index, attempt, choice.output_ids, placement, ticket, choice.is_suspect)
            self._commands.append(admit)
        return self._after(now)

    def queued(self, place_id: int) -> None:
        """A scheduler took it into its queue."""
        self._placing.queued(place_id)

    def place_refused(
        self, place_id: int, refusal: PlaceRefusal, retry_delay_s: float | None, now: float
    ) -> list[Command]:
        """A scheduler will not place it."""
        choices = self._placing.pop(place_id)
        if choices is None or self.is_ended:
            return self._take()
        error = self._placing.refused(choices, refusal, retry_delay_s, now)
        if refusal is PlaceRefusal.NO_ENGINE:
            error = self._limits.no_engine(now)
        return self._fail(error, now) if error is not None else self._after(now)

    def place_broken(self, place_id: int, now: float) -> list[Command]:
        """The stream that queued it is gone; it is enqueued again, spread out, with its age."""
        choices = self._placing.pop(place_id)
        if choices is None or self.is_ended:
            return self._take()
        self._placing.broken(choices, now)
        return self._after(now)

    def serving(self, is_served: bool, now: float) -> list[Command]:
        """Whether any engine of the model can be asked for now."""
        self._limits.serving(is_served, now)
        return self._after(now)

    # an engine's words, and its stream's

    def admitted(self, index: int, gateway_attempt: int, engine: EngineFacts, now: float) -> list[Command]:
        """The admit is on the wire."""
        choice = self._unsent(index, gateway_attempt)
        if choice is None:
            return self._take()
        choice.move(Phase.RUNNING)
        choice.engine = engine
        self._limits.admitted(now)
        return self._after(now)

    def admit_unsent(self, index: int, gateway_attempt: int, is_reachable: bool, now: float) -> list[Command]:
        """The admit was not sent: no connection, or another process answers there. Its ticket goes back."""
        choice = self._unsent(index, gateway_attempt)
        if choice is None:
            return self._take()
        assert choice.placement is not None
        self._commands.append(Withdraw(choice.place_id))
        if not is_reachable:
            choice.avoid(choice.placement.engine_id)
        self._retry_refused(choice, now)
        return self._after(now)

    def admit_refused(
        self, index: int, gateway_attempt: int, refusal: AdmitRefusal, detail: str, now: float
    ) -> list[Command]:
        """The engine did not take the admit. That is no crash."""
        choice = self._speaking(index, gateway_attempt)
        if choice is None:
            return self._take()
        if choice.phase is Phase.CLOSING:
            choice.move(Phase.DONE)
        elif refusal is AdmitRefusal.STALE:
            return self._fail(superseded(), now)
        elif refusal is AdmitRefusal.INVALID:
            return self._fail(MeshError(Reason.INTERNAL, f"an engine refused the request: {detail}"), now)
        else:
            if refusal is AdmitRefusal.DRAINING:
                choice.avoid(_engine_id(choice))
            self._forget_refused_admission(choice)
            self._retry_refused(choice, now)
        return self._after(now)

    def progress(
        self, index: int, gateway_attempt: int, num_cached: int, prefill_s: float, now: float
    ) -> None:
        """An admission has its first token (which follows)."""
        choice = self._speaking(index, gateway_attempt)
        if choice is not None:
            self._taken(choice)
            self.hops.split_prefill(prefill_s, now)
            choice.num_cached = num_cached
            self.account.under_way(index, num_cached, choice.num_rows_before)

    def tokens(
        self,
        index: int,
        gateway_attempt: int,
        first_index: int,
        ids: Sequence[int],
        logprobs: Sequence[ChoiceLogprobs] | None,
        *,
        now: float,
    ) -> list[Command]:
        """Ids of one step. Accepted only from the current attempt and at the next expected index."""
        choice = self.choices[index]
        if not choice.is_current(gateway_attempt):
            self.account.num_stale += len(ids)
            return self._take()
        if self.is_ended or choice.phase is Phase.CLOSING:
            self.account.num_discarded += len(ids)
            return self._take()
        num_known = len(choice.output_ids) - first_index
        if num_known < 0:
            return self._breach(choice, now)
        if num_known:
            self.account.num_stale += min(num_known, len(ids))
            ids = ids[num_known:]
            logprobs = logprobs[num_known:] if logprobs is not None else None
        if ids:
            self._accept(choice, ids, logprobs, now)
        return self._take()

    def returned(
        self, index: int, gateway_attempt: int, cause: ReturnCause, counts: Counts, now: float
    ) -> list[Command]:
        """The engine gave the sequence back."""
        choice = self._speaking(index, gateway_attempt)
        if choice is None:
            return self._take()
        self._taken(choice)
        self.account.settled(counts)
        if choice.phase is Phase.CLOSING:
            choice.move(Phase.DONE)
        elif cause is ReturnCause.SUSPECT:
            choice.was_in_a_raise = True
            self._crash(choice, now)
        else:
            if cause is ReturnCause.DRAINING:
                choice.avoid(_engine_id(choice))
            else:
                choice.preferred_engine_id = _engine_id(choice)
            self._requeue(choice)
        return self._after(now)

    def ended(
        self, index: int, gateway_attempt: int, cause: EndCause, counts: Counts, now: float
    ) -> list[Command]:
        """The engine's last word on an admit. The finish itself was judged here, on the ids."""
        choice = self._speaking(index, gateway_attempt)
        if choice is None:
            return self._take()
        self._taken(choice)
        self.account.settled(counts)
        if choice.phase is Phase.CLOSING:
            choice.move(Phase.DONE)
        elif cause is EndCause.BAD_LOGITS:
            return self._fail(MeshError(Reason.BAD_LOGITS, "the model gave no usable distribution"), now)
        elif cause is EndCause.DEADLINE:
            return self._fail(deadline_passed(), now)
        elif cause is EndCause.CANCELLED:
            return self._fail(superseded(), now)
        else:
            self._crash(choice, now)
        return self._after(now)

    def run_broken(self, index: int, gateway_attempt: int, now: float) -> list[Command]:
        """The stream to the engine is gone, and the admission with it."""
        choice = self._speaking(index, gateway_attempt)
        if choice is None:
            return self._take()
        self._taken(choice)
        self._book_lost(choice)
        if choice.phase is Phase.CLOSING:
            choice.move(Phase.DONE)
        else:
            self._crash(choice, now)
        return self._after(now)

    def engine_is_back(self, index: int, gateway_attempt: int) -> None:
        """The engine whose stream broke under that attempt had only fallen silent. That is no crash."""
        self.choices[index].crashed_attempts.discard(gateway_attempt)

    # the gateway's own

    def fail(self, error: MeshError, now: float) -> list[Command]:
        """Ends it from outside: the caller is gone, a higher attempt, a slow reader, a shutdown."""
        return self._take() if self.is_ended else self._fail(error, now)

    def tick(self, now: float) -> list[Command]:
        """Does what is due by now."""
        if self.is_ended:
            return self._take()
        error = self._limits.overdue(now)
        if error is not None:
            return self._fail(error, now)
        if now >= self._limits.run_limit_s():
            self._stop_running(now)
        self._commands.extend(self._placing.due(now))
        for choice in self.choices:
            if choice.phase is Phase.CLOSING and now >= choice.settle_s:
                self._commands.append(Cancel(choice.index, choice.gateway_attempt))
                choice.move(Phase.DONE)
        return self._after(now)

    # steps of these

    def _speaking(self, index: int, gateway_attempt: int) -> Choice | None:
        choice = self.choices[index]
        return choice if choice.is_current(gateway_attempt) and not self.is_ended else None

    def _unsent(self, index: int, gateway_attempt: int) -> Choice | None:
        choice = self.choices[index]
        is_unsent = choice.phase is Phase.PLACED and choice.gateway_attempt == gateway_attempt
        return choice if is_unsent and not self.is_ended else None

    def _taken(self, choice: Choice) -> None:
        """The engine took the admit: all that it says but a refusal tells so. Only then it was a move."""
        assert choice.engine is not None, choice.index
        before, choice.last_taken_by = choice.last_taken_by, choice.engine.boot_id
        if before not in ("", choice.last_taken_by):
            self.account.moved()

    def _replay(self, choice: Choice, known_ids: Sequence[int]) -> None:
        delta = choice.text.push(known_ids)
        choice.output_ids.extend(known_ids[: delta.num_accepted])
        if known_ids:
            choice.fingerprint = self._spec.known_fingerprint
        if delta.finish is not None:
            choice.move(Phase.DONE)

    def _accept(
        self, choice: Choice, ids: Sequence[int], logprobs: Sequence[ChoiceLogprobs] | None, now: float
    ) -> None:
        begin_s = self._clock()
        delta = choice.text.push(ids)
        self.hops.add_detokenize(self._clock() - begin_s)
        first_index, num = len(choice.output_ids), delta.num_accepted
        accepted = list(ids[:num])
        choice.output_ids.extend(accepted)
        choice.crashed_attempts.clear()
        choice.num_refusals = 0
        choice.was_in_a_raise = False
        kept = list(logprobs[:num]) if logprobs is not None else None
        self._commands.append(EmitTokens(choice.index, first_index, accepted, delta.text, kept))
        if not choice.is_decoding:
            self._begin_decoding(choice, now)
        if delta.finish is not None:
            self.account.num_discarded += delta.num_discarded
            self._close(choice, now, is_known_to_engine=delta.finish.stop_text is None)
            self._after_change(now)

    def _begin_decoding(self, choice: Choice, now: float) -> None:
        assert choice.engine is not None
        choice.is_decoding = True
        self._taken(choice)
        has_changed = choice.has_changed_fingerprint
        choice.fingerprint = choice.engine.fingerprint
        choice.avoid_engine_ids = ()
        self.account.computing_at(choice.engine, has_changed)
        self._after_change(now)

    def _close(self, choice: Choice, now: float, is_known_to_engine: bool) -> None:
        """The choice is finished here; the engine stops by itself where an id or the length ended it."""
        if not is_known_to_engine:
            self._commands.append(Cancel(choice.index, choice.gateway_attempt))
        choice.move(Phase.CLOSING)
        choice.settle_s = now + SETTLE_S

    def _breach(self, choice: Choice, now: float) -> list[Command]:
        """An engine skipped an index: it cannot be trusted with this sequence any more."""
        self._commands.append(Cancel(choice.index, choice.gateway_attempt))
        self._book_lost(choice)
        self._crash(choice, now)
        return self._after(now)

    def _crash(self, choice: Choice, now: float) -> None:
        choice.crashed_attempts.add(choice.gateway_attempt)
        if choice.num_crashes >= CRASH_LIMIT:
            message = f"engines died {CRASH_LIMIT} times under this request without a token between"
            self._fail_now(MeshError(Reason.CRASH_LIMIT, message))
            return
        choice.avoid(_engine_id(choice))
        self._requeue(choice)

    def _requeue(self, choice: Choice) -> None:
        if choice.is_decoding:
            rows = self._spec.num_prompt_ids + len(choice.output_ids) - 1
            choice.num_rows_before = max(choice.num_rows_before, rows)
        choice.is_decoding = False
        self._commands.append(self._placing.enqueue([choice]))

    def _retry_refused(self, choice: Choice, now: float) -> None:
        """At once the first time, then later and later: a refusal is news for the scheduler as well."""
        choice.num_refusals += 1
        if choice.num_refusals == 1:
            self._requeue(choice)
        else:
            self._placing.admit_refused(choice, now)

    def _forget_refused_admission(self, refused: Choice) -> None:
        """A refused admit was no admission: the queue wait goes on unless another was taken or is out."""
        others = (choice for choice in self.choices if choice is not refused)
        is_another_out = any(choice.phase is Phase.RUNNING for choice in others)
        if not is_another_out and not any(choice.last_taken_by for choice in self.choices):
            self._limits.forget_admission()

    def _book_lost(self, choice: Choice) -> None:
        """Its tokens prove that all known ids but the last were computed, or found in the cache."""
        if choice.is_decoding:
            num_rows = self._spec.num_prompt_ids + len(choice.output_ids) - 1
            self.account.lost(max(0, num_rows - (choice.num_cached or 0)))

    def _stop_running(self, now: float) -> None:
        """The run time is over: what is there is the answer."""
        for choice in self.choices:
            if choice.finish is not None:
                continue
            choice.final_text = choice.text.finish_run_time()
            if choice.phase is Phase.RUNNING:
                self._close(choice, now, is_known_to_engine=False)
            else:
                self._leave_queue(choice)
                choice.move(Phase.DONE)

    # ends

    def _fail(self, error: MeshError, now: float) -> list[Command]:
        self._fail_now(error)
        return self._after(now)

    def _fail_now(self, error: MeshError) -> None:
        for choice in self.choices:
            if choice.is_out:
                self._commands.append(Cancel(choice.index, choice.gateway_attempt))
            self._leave_queue(choice)
        self._commands.append(Fail(error))
        self.is_ended = True

    def _leave_queue(self, choice: Choice) -> None:
        if choice.phase is Phase.PLACED:
            self._commands.append(Cancel(choice.index, choice.gateway_attempt))
        if choice.phase in (Phase.QUEUED, Phase.PLACED):
            withdraw = Withdraw(choice.place_id)
            if withdraw not in self._commands:
                self._commands.append(withdraw)
            self._placing.pop(choice.place_id)

    def _complete(self) -> None:
        ends = []
        for choice in self.choices:
            assert choice.finish is not None, choice.index
            ends.append(ChoiceEnd(choice.index, choice.finish, len(choice.output_ids), choice.final_text))
        self._commands.append(Complete(tuple(ends)))
        self.is_ended = True

    def _after(self, now: float) -> list[Command]:
        self._after_change(now)
        return self._take()

    def _after_change(self, now: float) -> None:
        """What follows from any change of phase: the stage of the clock, the end, the next timer."""
        self.hops.enter(self._stage(), now)
        self._limits.waiting(any(choice.phase in _WAITING for choice in self.choices), now)
        if not self.is_ended and all(choice.phase is Phase.DONE for choice in self.choices):
            self._complete()
        self.timer_s = inf if self.is_ended else self._next_timer_s()

    def _stage(self) -> Stage:
        phases = {choice.phase for choice in self.choices}
        if any(choice.is_decoding and choice.phase is Phase.RUNNING for choice in self.choices):
            return Stage.DECODE
        if self.is_ended or phases <= {Phase.CLOSING, Phase.DONE}:
            return Stage.DELIVER
        return Stage.DISPATCH if phases & {Phase.PLACED, Phase.RUNNING} else Stage.QUEUE

    def _next_timer_s(self) -> float:
        settle_s = (choice.settle_s for choice in self.choices if choice.phase is Phase.CLOSING)
        is_unfinished = any(choice.finish is None for choice in self.choices)
        limit_s = self._limits.next_s(is_unfinished)
        return min(limit_s, self._placing.next_s(), min(settle_s, default=inf))

    def _take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands


_WAITING = frozenset({Phase.BACKING_OFF, Phase.QUEUED, Phase.PLACED})


def _engine_id(choice: Choice) -> str:
    assert choice.engine is not None, choice.index
    return choice.engine.engine_id


def superseded() -> MeshError:
    """A higher attempt of the same request took over."""
    return MeshError(Reason.SUPERSEDED, "a higher attempt of this request took over")
