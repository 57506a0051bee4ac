"""One choice of a request: where it stands, what it has, and which attempt may speak for it.

It decides nothing; the request's life moves it along the transition table.
"""

from dataclasses import dataclass, field
from enum import Enum

from services.gateway.life.request_words import EngineFacts, Placement
from services.gateway.text.output_text import Finish, OutputText

MAX_AVOIDED = 8


class Phase(Enum):
    """Where a choice stands."""

    IDLE = "idle"
    BACKING_OFF = "backing_off"
    """Will be enqueued in a while."""
    QUEUED = "queued"
    """At a scheduler, under place_id."""
    PLACED = "placed"
    """Has a ticket; its admit is not on the wire yet."""
    RUNNING = "running"
    """Its admit was sent."""
    CLOSING = "closing"
    """Finished here; the engine's account is still out."""
    DONE = "done"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.QUEUED, Phase.DONE}),
    Phase.BACKING_OFF: frozenset({Phase.QUEUED, Phase.DONE}),
    Phase.QUEUED: frozenset({Phase.PLACED, Phase.BACKING_OFF, Phase.DONE}),
    Phase.PLACED: frozenset({Phase.RUNNING, Phase.BACKING_OFF, Phase.QUEUED, Phase.DONE}),
    Phase.RUNNING: frozenset({Phase.CLOSING, Phase.BACKING_OFF, Phase.QUEUED, Phase.DONE}),
    Phase.CLOSING: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}


@dataclass(slots=True)
class Choice:
    """State of one choice. Only RequestLife changes it."""

    index: int
    text: OutputText
    output_ids: list[int] = field(default_factory=list)
    phase: Phase = Phase.IDLE
    gateway_attempt: int = 0
    """The attempt that may speak; raised with every admit."""
    place_id: int = 0
    placement: Placement | None = None
    engine: EngineFacts | None = None
    """Of the last admission."""
    last_taken_by: str = ""
    """boot_id of the last engine that took an admission."""
    fingerprint: str = ""
    """Of the engine that drew the last accepted token."""
    is_decoding: bool = False
    """The current admission has given a token."""
    num_cached: int | None = None
    """Of the current admission, once its first token is there."""
    num_rows_before: int = 0
    """Rows that earlier admissions are known to have computed."""
    crashed_attempts: set[int] = field(default_factory=set)
    """That ended in a death or a suspect return since the last accepted token."""
    was_in_a_raise: bool = False
    """A step that it was in raised, and no token was accepted since."""
    num_refusals: int = 0
    """Refused admits since the last accepted token."""
    avoid_engine_ids: tuple[str, ...] = ()
    preferred_engine_id: str = ""
    settle_s: float = 0.0
    final_text: str = ""

    @property
    def finish(self) -> Finish | None:
        return self.text.finish

    @property
    def has_changed_fingerprint(self) -> bool:
        """Its ids so far are another kind of engine's."""
        return self.engine is not None and self.fingerprint not in ("", self.engine.fingerprint)

    @property
    def num_crashes(self) -> int:
        return len(self.crashed_attempts)

    @property
    def is_out(self) -> bool:
        """Its admit is with an engine."""
        return self.phase in (Phase.RUNNING, Phase.CLOSING)

    def move(self, phase: Phase) -> None:
        """The one way to change phase."""
        assert phase in TRANSITIONS[self.phase], (self.phase, phase)
        self.phase = phase

    def begin_attempt(self, placement: Placement) -> None:
        """A new admit: whatever an older attempt still says is stale."""
        self.gateway_attempt += 1
        self.placement = placement
        self.is_decoding = False
        self.num_cached = None

    @property
    def is_suspect(self) -> bool:
        """One death is most likely another's doing; two, or a step that raised, may be its own."""
        return self.was_in_a_raise or self.num_crashes >= 2

    def is_current(self, gateway_attempt: int) -> bool:
        """True if this attempt's admit is out and may speak."""
        return gateway_attempt == self.gateway_attempt and self.is_out

    def avoid(self, engine_id: str) -> None:
        """Prefers other engines from now on."""
        others = tuple(known for known in self.avoid_engine_ids if known != engine_id)
        self.avoid_engine_ids = (*others, engine_id)[-MAX_AVOIDED:]
        if self.preferred_engine_id == engine_id:
            self.preferred_engine_id = ""
