"""Which choices of one request wait for a place, under which place id, and which back off first.

It moves choices between queue and back-off, says for how long and words the enqueue; it does not decide that
they need a place.
"""

from collections.abc import Sequence
from math import inf

from services.contract.errors import MeshError, Reason, unavailable
from services.gateway.life.choice import Choice, Phase
from services.gateway.life.limits import Limits, deadline_passed
from services.gateway.life.request_words import Enqueue, JitterFn, PlaceRefusal, RequestSpec

BREAK_JITTER_S = 0.1
NO_ENGINE_RETRY_S = 0.25
REFUSAL_RETRY_S = 0.01
MAX_DOUBLINGS = 10
MAX_RETRY_S = 0.5


class Placing:
    """Place ids are never reused. The choices of a new request wait together, a moved one alone."""

    def __init__(self, spec: RequestSpec, limits: Limits, jitter: JitterFn) -> None:
        self._spec = spec
        self._limits = limits
        self._jitter = jitter
        self._queued: dict[int, list[Choice]] = {}
        self._back_offs: list[tuple[float, list[Choice]]] = []
        self._last_place_id = 0
        self._was_placed = spec.was_admitted
        self._was_queued = False

    def enqueue(self, choices: list[Choice]) -> Enqueue:
        """Asks for a place for all of them together."""
        self._last_place_id += 1
        self._queued[self._last_place_id] = choices
        for choice in choices:
            choice.move(Phase.QUEUED)
            choice.place_id = self._last_place_id
        return self._enqueue_of(choices)

    def pop(self, place_id: int) -> list[Choice] | None:
        """The choices that wait under this id, which is met now; None if it was withdrawn."""
        return self._queued.pop(place_id, None)

    def placed(self) -> None:
        """From now on it was admitted once, as far as schedulers care."""
        self._was_placed = True

    def queued(self, place_id: int) -> None:
        """A scheduler took it into its queue: from now on it is never refused for a full one."""
        self._was_queued |= place_id in self._queued

    def refused(
        self, choices: list[Choice], refusal: PlaceRefusal, retry_delay_s: float | None, now: float
    ) -> MeshError | None:
        """A scheduler will not place them: the error that this is, or None and they are enqueued again."""
        error = self._refusal_error(refusal, retry_delay_s)
        if error is None:
            is_unserved = refusal is PlaceRefusal.NO_ENGINE
            delay_s = retry_delay_s or (NO_ENGINE_RETRY_S if is_unserved else BREAK_JITTER_S)
            self._back_off(choices, now + min(delay_s, MAX_RETRY_S) * (0.5 + self._jitter()))
        return error

    def broken(self, choices: list[Choice], now: float) -> None:
        """The stream that queued them is gone: they are enqueued again, spread out."""
        self._back_off(choices, now + BREAK_JITTER_S * self._jitter())

    def admit_refused(self, choice: Choice, now: float) -> None:
        """An engine did not take it, and not for the first time: it is enqueued again, later and later."""
        delay_s = min(REFUSAL_RETRY_S * 2 ** min(choice.num_refusals, MAX_DOUBLINGS), MAX_RETRY_S)
        self._back_off([choice], now + delay_s * (0.5 + self._jitter()))

    def due(self, now: float) -> list[Enqueue]:
        """Enqueues those whose back-off is over."""
        due = [choices for retry_s, choices in self._back_offs if retry_s <= now]
        self._back_offs = [(retry_s, choices) for retry_s, choices in self._back_offs if retry_s > now]
        waiting = ([choice for choice in choices if choice.phase is Phase.BACKING_OFF] for choices in due)
        return [self.enqueue(choices) for choices in waiting if choices]

    def next_s(self) -> float:
        """When the next back-off is over."""
        return min((retry_s for retry_s, _ in self._back_offs), default=inf)

    def _back_off(self, choices: list[Choice], retry_s: float) -> None:
        for choice in choices:
            choice.move(Phase.BACKING_OFF)
        self._back_offs.append((retry_s, choices))

    def _refusal_error(self, refusal: PlaceRefusal, retry_delay_s: float | None) -> MeshError | None:
        """What a refusal means for the request; None where it is asked for again."""
        match refusal:
            case PlaceRefusal.QUEUE_FULL:
                return MeshError(Reason.QUEUE_FULL, "the queue is full", retry_delay_s=retry_delay_s)
            case PlaceRefusal.QUEUE_WAIT:
                return MeshError(Reason.QUEUE_WAIT, "queued for too long")
            case PlaceRefusal.DEADLINE:
                return deadline_passed()
            case PlaceRefusal.TOO_LARGE if not self._was_placed:
                return MeshError(Reason.TOO_LONG, "no engine could ever hold prompt + max_tokens")
            case PlaceRefusal.TOO_LARGE:
                return unavailable("no engine that is left can hold the request")
            case PlaceRefusal.INVALID:
                return MeshError(Reason.INTERNAL, "a scheduler refused the request as invalid")
            case PlaceRefusal.NO_ENGINE | PlaceRefusal.DRAINING:
                return None

    def _enqueue_of(self, choices: Sequence[Choice]) -> Enqueue:
        lead = choices[0]
        num_outputs = [len(choice.output_ids) for choice in choices]
        return Enqueue(
            place_id=lead.place_id,
            num_sequences=len(choices),
            num_known_ids=self._spec.num_prompt_ids + max(num_outputs),
            max_output_left=self._spec.max_tokens - min(num_outputs),
            queue_deadline_s=self._limits.queue_limit_s(),
            num_crashes=lead.num_crashes,
            avoid_engine_ids=lead.avoid_engine_ids,
            preferred_engine_id=lead.preferred_engine_id,
            preferred_fingerprint=next(filter(None, (choice.fingerprint for choice in choices)), ""),
            was_admitted=self._was_placed,
            was_accepted=self._was_placed or self._was_queued,
        )
