"""Decides each step: who holds a slot, who yields one, and which positions of which sequences run.

Decoding rows come first, so that a long prompt never stalls running streams by more than one chunk.
"""

from dataclasses import dataclass

from services.engine.core.gather import Gathers
from services.engine.core.holdings import Holdings
from services.engine.core.limits import Limits
from services.engine.core.roster import Roster
from services.engine.core.sequence import Sequence, State
from services.engine.step import Row


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row and the sequence as it stood when the row was planned."""

    sequence: Sequence
    epoch: int
    row: Row


class Planner:
    """Works on the roster and the holdings that it shares with the running set."""

    def __init__(self, limits: Limits, roster: Roster, holdings: Holdings, gathers: Gathers) -> None:
        self._limits = limits
        self._roster = roster
        self._holdings = holdings
        self._gathers = gathers
        self._rows: dict[int, PlannedRow] = {}
        self._budget = 0
        self._is_suspects_turn = False
        self.freed_block_ids: list[int] = []
        self.num_preemptions = 0
        self.num_hit_tokens = 0

    def plan(self, now_us: int) -> list[PlannedRow]:
        """The rows of the next step; counters move on as if it had run."""
        self._budget = self._limits.max_batch_tokens
        self._promote(now_us)
        suspects = [sequence for sequence in self._roster.running if sequence.is_suspect]
        others = [sequence for sequence in self._roster.running if not sequence.is_suspect]
        # A suspect runs alone, every other step, so that a step it makes raise takes nobody along.
        self._is_suspects_turn = bool(suspects) and not self._is_suspects_turn
        if not self._is_suspects_turn:
            self._plan_all(others, now_us)
        for sequence in suspects:
            if not self._rows:
                self._plan_all([sequence], now_us)
        if self._is_suspects_turn and not self._rows:
            self._plan_all(others, now_us)
        # From here on they are in flight: a later preemption takes none of them back.
        rows, self._rows = list(self._rows.values()), {}
        return rows

    def preempt(self, sequence: Sequence, now_us: int) -> None:
        """Takes slot and blocks from a running sequence; it goes on later from the ids it has."""
        planned = self._rows.pop(sequence.sequence_id, None)
        if planned is not None:
            self._budget += len(planned.row.chunk_ids)
            sequence.num_placeholders -= planned.row.is_sampled
        self.freed_block_ids += self._holdings.preempt(sequence, now_us)
        self._roster.preempt(sequence, now_us)
        self.num_preemptions += 1

    def _promote(self, now_us: int) -> None:
        for sequence in tuple(self._roster.waiting):
            if self._gathers.is_waiting(sequence.admission.ticket, now_us):
                continue
            victim = self._roster.running[-1] if self._roster.is_full else None
            # Equal class never preempts for a slot.
            if victim is not None and victim.admission.priority <= sequence.admission.priority:
                break
            if not self._fits(sequence, victim):
                break
            if victim is not None:
                self.preempt(victim, now_us)
            self._roster.start(sequence)

    def _fits(self, sequence: Sequence, victim: Sequence | None) -> bool:
        others = [running for running in self._roster.running if running is not victim]
        if not others:
            return True
        spare = self._holdings.cache.num_available - sum(running.num_claimed_blocks for running in others)
        if victim is not None:
            spare += len(victim.held_block_ids)
        # What was preempted comes back only above the reserve, else it would yield again at once.
        reserve = self._limits.num_reserve_blocks if sequence.state is State.PREEMPTED else 0
        return sequence.num_claimed_blocks + reserve <= spare

    def _plan_all(self, sequences: list[Sequence], now_us: int) -> None:
        behind: list[Sequence] = []
        for sequence in sequences:
            if not self._may_run(sequence):
                continue
            if sequence.num_known - sequence.num_planned > 1:
                behind.append(sequence)
            else:
                self._plan_row(sequence, 1, now_us)
        room = min(self._budget, self._limits.chunk_tokens) if self._rows else self._budget
        for sequence in behind:
            if room <= 0:
                break
            room -= self._plan_row(sequence, min(room, self._limits.chunk_tokens), now_us)

    def _may_run(self, sequence: Sequence) -> bool:
        """False while all that is left to draw is in flight, or where the next position is not known yet."""
        if sequence.num_placeholders == 0:
            return True
        return self._limits.max_ids_per_step == 1 and sequence.num_known < sequence.admission.max_tokens

    def _plan_row(self, sequence: Sequence, limit: int, now_us: int) -> int:
        """Plans up to `limit` positions; 0 if it waits for a twin, was preempted, or had to yield."""
        if sequence.state is not State.RUNNING or min(limit, self._budget) <= 0:
            return 0
        if sequence.num_known - sequence.num_planned > 1:
            self._take_hits(sequence)
            if self._waits_for_twin(sequence):
                return 0
        self.freed_block_ids += self._holdings.pass_window(sequence, now_us)
        start = sequence.num_planned
        end = min(start + min(limit, self._budget), sequence.num_known)
        assert start < end, (sequence.sequence_id, start, end)
        is_sampled = end == sequence.num_known
        if not self._make_room(sequence, self._num_positions(sequence, end, is_sampled), now_us):
            return 0
        self._add_row(sequence, start, end, is_sampled, now_us)
        return end - start

    def _take_hits(self, sequence: Sequence) -> None:
        num_found = self._holdings.take_hits(sequence)
        self.num_hit_tokens += num_found
        if sequence.epoch == 0 and not sequence.has_first_token:
            sequence.num_cached_tokens += num_found

    def _waits_for_twin(self, sequence: Sequence) -> bool:
        owner_id = self._holdings.twin_of(sequence)
        owner = self._roster.get(owner_id) if owner_id is not None else None
        # Never for a lower class: that one may have to wait for long itself.
        return owner is not None and owner.admission.priority <= sequence.admission.priority

    def _num_positions(self, sequence: Sequence, end: int, is_sampled: bool) -> int:
        """Positions the step may write: a row that draws several ids computes all of them but the last."""
        extra = self._limits.max_ids_per_step - 1 if is_sampled else 0
        return max(end, min(end + extra, sequence.admission.max_tokens))

    def _make_room(self, sequence: Sequence, num_positions: int, now_us: int) -> bool:
        """Blocks for the positions; the youngest of the lowest class yields, be it the sequence itself."""
        while not self._holdings.extend(sequence, num_positions, now_us):
            victim = next(it for it in reversed(self._roster.running) if it.held_block_ids or it is sequence)
            self.preempt(victim, now_us)
            if victim is sequence:
                return False
        return True

    def _add_row(self, sequence: Sequence, start: int, end: int, is_sampled: bool, now_us: int) -> None:
        if len(sequence.block_table) != len(sequence.block_ids):
            sequence.block_table = tuple(sequence.block_ids)
        chunk = sequence.chunk(start, end)
        row = Row(sequence.sequence_id, chunk, start, sequence.block_table, is_sampled)
        self._rows[sequence.sequence_id] = PlannedRow(sequence, sequence.epoch, row)
        self._budget -= end - start
        if start < len(sequence.admission.ids):
            self._holdings.register(sequence, end)
        sequence.num_planned = end
        if is_sampled:
            sequence.num_placeholders += 1
            self._holdings.settle(sequence)
        if sequence.first_step_us is None:
            sequence.first_step_us = now_us
