"""One sequence: its ids, its blocks, how far it has been computed, and its state.

Progress is counters: steps hand out tokens until `num_planned` catches up with
the known ids; there is no prefill.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from services.engine.core.admission import Admission
from services.engine.core.outcome import Counts, EndReason
from services.engine.step import PLACEHOLDER, SequenceSpec


class State(Enum):
    """Where a sequence stands."""

    WAITING = auto()
    """Admitted, never ran."""
    RUNNING = auto()
    PREEMPTED = auto()
    """Ran, gave its slot or blocks away."""
    ENDED = auto()
    RETURNED = auto()


_OVER = {State.ENDED, State.RETURNED}
TRANSITIONS: dict[State, set[State]] = {
    State.WAITING: {State.RUNNING} | _OVER,
    State.RUNNING: {State.PREEMPTED} | _OVER,
    State.PREEMPTED: {State.RUNNING} | _OVER,
    State.ENDED: set(),
    State.RETURNED: set(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable; owned by the running set."""

    sequence_id: int
    admission: Admission
    admitted_us: int
    block_hashes: list[bytes]
    """Of the full blocks known so far."""
    revision_digest: bytes
    token_ids: list[int] = field(init=False)
    state: State = State.WAITING
    waiting_since_us: int = field(init=False)
    block_ids: list[int] = field(default_factory=list)
    block_table: tuple[int, ...] = ()
    """Snapshot of block_ids, renewed when they change."""
    num_planned: int = 0
    """Positions computed or in flight."""
    num_placeholders: int = 0
    """Draws in flight."""
    num_indexed_blocks: int = 0
    """Leading blocks that were offered to the index or came from it."""
    num_passed_blocks: int = 0
    """Leading blocks behind the window, given back; the null block stands for them."""
    num_registered_blocks: int = 0
    """Leading blocks it computes or has computed, as far as twins know."""
    num_claimed_blocks: int = 0
    """Blocks that its known ids will still take."""
    inserted_hashes: list[bytes] = field(default_factory=list)
    """What it brought into the index."""
    epoch: int = 0
    """Rises with every preemption: rows planned before belong to blocks it no longer holds."""
    num_peak_computed: int = 0
    """Positions that were computed at least once."""
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    """Rows that went through the model."""
    num_recomputed_tokens: int = 0
    is_known_to_executor: bool = False
    is_suspect: bool = False
    """It runs alone until its first id."""
    first_step_us: int | None = None
    has_first_token: bool = False

    def __post_init__(self) -> None:
        self.token_ids = list(self.admission.ids)
        self.is_suspect = self.admission.is_suspect
        self.waiting_since_us = self.admitted_us

    @property
    def rank(self) -> tuple[int, int, int]:
        """Served in this order: class, age of the request, order of admission."""
        return (self.admission.priority, self.admitted_us - self.admission.age_us, self.sequence_id)

    @property
    def num_known(self) -> int:
        """Ids that exist or will exist when the steps in flight are over."""
        return len(self.token_ids) + self.num_placeholders

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.admission.num_prompt_tokens

    @property
    def held_block_ids(self) -> list[int]:
        """Those that it has a reference to."""
        return self.block_ids[self.num_passed_blocks :]

    @property
    def is_live(self) -> bool:
        return self.state not in _OVER

    def move_to(self, state: State) -> None:
        """The one mutator of `state`."""
        assert state in TRANSITIONS[self.state], (self.sequence_id, self.state, state)
        self.state = state

    def chunk(self, start: int, end: int) -> tuple[int, ...]:
        """Ids of the positions [start, end); the last may be in flight."""
        known = tuple(self.token_ids[start:end])
        return known if len(known) == end - start else (*known, PLACEHOLDER)

    def finish_reason(self) -> EndReason | None:
        """Whether the ids so far are an end."""
        num_output = self.num_output
        sampling = self.admission.sampling
        # A stop id counts only where the sampler could have drawn it: from output index min_tokens on.
        if num_output > sampling.min_tokens and self.token_ids[-1] in sampling.stop_ids:
            return EndReason.STOP
        return EndReason.LENGTH if num_output >= self.admission.max_output_tokens else None

    def spec(self) -> SequenceSpec:
        """How an executor meets it."""
        asked = self.admission
        return SequenceSpec(self.sequence_id, tuple(self.token_ids), asked.num_prompt_tokens, asked.sampling)

    def counts(self) -> Counts:
        return Counts(
            num_cached_tokens=self.num_cached_tokens,
            num_computed_tokens=self.num_computed_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_preemptions=self.epoch,
        )
