"""The engine's core: admits token lists, plans steps, commits what they drew, ends every admit exactly once.

Events and a clock in microseconds in; plans and news out. No sockets, no tasks, no tensors, no text.
Plan k+1 may precede commit k: nothing is indexed or told before its commit.
"""

import heapq
from collections.abc import Sequence as Many
from dataclasses import dataclass

from services.contract.block_hash import block_hashes, digest_revision
from services.engine.core.admission import Admission
from services.engine.core.attempts import AttemptBook
from services.engine.core.block_pool import BlockPool
from services.engine.core.gather import Gathers
from services.engine.core.holdings import Holdings
from services.engine.core.limits import RETURN_AFTER_US, Limits
from services.engine.core.newsroom import Newsroom
from services.engine.core.outcome import EndReason, Refusal, ReturnReason, TicketFate, Totals
from services.engine.core.planner import PlannedRow, Planner
from services.engine.core.prefix_cache import PrefixCache
from services.engine.core.roster import Roster
from services.engine.core.sequence import Sequence, State
from services.engine.step import NULL_BLOCK, RowOutput, SequenceSpec, StepResult


@dataclass(frozen=True, slots=True)
class Plan:
    """One step for the executor: forget, poison, get to know, run. Without rows it is housekeeping only."""

    number: int
    removed_ids: tuple[int, ...]
    freed_block_ids: tuple[int, ...]
    added: tuple[SequenceSpec, ...]
    rows: tuple[PlannedRow, ...]
    num_tokens: int


class RunningSet:
    """Owns sequences, blocks and the prefix cache of one engine."""

    def __init__(self, limits: Limits, revision: str, boot_id: str, seed: int = 0) -> None:
        self.limits = limits
        self.totals = Totals()
        self.is_draining = False
        self.cache = PrefixCache(BlockPool(limits.num_blocks, seed))
        self.roster = Roster(limits.max_sequences)
        self.news = Newsroom()
        self._revision = revision
        self._revision_digest = digest_revision(revision)
        self._boot_id = boot_id
        self._attempts = AttemptBook()
        self._gathers = Gathers()
        self._holdings = Holdings(self.cache, limits)
        self._planner = Planner(limits, self.roster, self._holdings, self._gathers)
        self._deadlines: list[tuple[int, int]] = []
        self._removed_ids: list[int] = []
        self._next_sequence_id = 1
        self._next_plan_number = 1

    # --- events

    def admit(self, admission: Admission, now_us: int) -> None:
        """Takes a checked admission, or refuses it; ids that are an end already need no step."""
        self._gathers.join(admission.ticket, now_us)
        refusal = self._refusal(admission)
        if refusal is not None:
            return self.refuse(admission, *refusal)
        self._supersede(admission, now_us)
        sequence = self._sequence_of(admission, now_us)
        reason = sequence.finish_reason()
        if reason is not None:
            self.totals.admitted += 1
            self._attempts.end(admission.identity, admission.attempt, now_us)
            return self._tell_end(sequence, reason)
        num_needed = self._holdings.needed_blocks(sequence)
        room = self._room_refusal(admission, num_needed)
        if room is not None:
            self._attempts.end(admission.identity, admission.attempt, now_us)
            return self.refuse(admission, Refusal.NO_ROOM, room)
        self._enter(sequence, num_needed, now_us)

    def refuse(self, admission: Admission, refusal: Refusal, detail: str) -> None:
        """The one end of an admit that is not taken."""
        self.totals.refused[refusal] += 1
        self.news.refused(admission, refusal, detail)

    def cancel(self, stream_id: int, handle: int, now_us: int) -> None:
        """Ends a sequence of a stream; an unknown handle is ignored."""
        sequence = self.roster.by_handle(stream_id, handle)
        if sequence is not None:
            self._end(sequence, EndReason.CANCELLED, now_us)

    def drop_stream(self, stream_id: int, now_us: int) -> None:
        """A Run stream broke: its sequences end with it and nobody is told; their blocks stay cached."""
        for sequence in self.roster.live():
            if sequence.admission.stream_id == stream_id:
                self._leave(sequence, State.ENDED, now_us)
                self.totals.dropped += 1
                self.news.ticket(sequence.admission, TicketFate.ENDED)
        self.news.drop_stream(stream_id)

    def release_retention(self, session_key: bytes) -> None:
        """A session ended."""
        self.cache.release_retention(session_key)

    def start_drain(self) -> None:
        """Takes no more admits; what runs goes on."""
        self.is_draining = True

    def return_all(self, reason: ReturnReason, now_us: int) -> None:
        """Gives every sequence back to its gateway."""
        for sequence in self.roster.live():
            self._return(sequence, reason, now_us)

    # --- steps

    def plan(self, now_us: int) -> Plan | None:
        """The next step, or None if there is nothing to do now."""
        self._prune(now_us)
        rows = self._planner.plan(now_us)
        self._return_starved(now_us)
        self.totals.preemptions = self._planner.num_preemptions
        self.totals.tokens_cached = self._planner.num_hit_tokens
        removed, self._removed_ids = tuple(self._removed_ids), []
        freed, self._planner.freed_block_ids = tuple(self._planner.freed_block_ids), []
        if not rows and not removed and not freed:
            return None
        number = self._next_plan_number
        self._next_plan_number += bool(rows)
        num_tokens = sum(len(planned.row.chunk_ids) for planned in rows)
        return Plan(number, removed, freed, self._introduce(rows), tuple(rows), num_tokens)

    def commit(self, plan: Plan, result: StepResult, now_us: int) -> None:
        """Takes over what a step drew."""
        for planned, output in zip(plan.rows, result.outputs, strict=True):
            assert planned.row.sequence_id == output.sequence_id, (planned.row, output.sequence_id)
            self._commit_row(planned, output, now_us)

    def fail(self, plan: Plan, now_us: int) -> None:
        """A step raised: whoever was in it may be the cause."""
        self.totals.steps_failed += 1
        for planned in plan.rows:
            if planned.sequence.is_live:
                self._return(planned.sequence, ReturnReason.SUSPECT, now_us)

    def abandon(self, plan: Plan, now_us: int) -> None:
        """A step that followed a failed one never ran: who is left starts over from the ids it has."""
        for planned in plan.rows:
            sequence = planned.sequence
            sequence.num_placeholders -= planned.row.is_sampled
            if sequence.state is State.RUNNING and sequence.epoch == planned.epoch:
                self._planner.preempt(sequence, now_us)

    def next_wakeup_us(self, now_us: int) -> int | None:
        """When something is due though nothing arrives."""
        times = [self._gathers.prune(now_us)]
        times += [self._deadlines[0][0]] if self._deadlines else []
        times += [it.waiting_since_us + RETURN_AFTER_US for it in self.roster.waiting]
        return min((time for time in times if time is not None), default=None)

    # --- room

    @property
    def num_room_blocks(self) -> int:
        """Blocks that admissions may take: free and cached less the reserve and the claims."""
        if not len(self.roster):
            return self.cache.num_available
        kept = self.limits.num_reserve_blocks + self._holdings.num_claimed
        return max(0, self.cache.num_available - kept)

    def check(self) -> None:
        """Asserts the invariants; costs O(everything)."""
        self.cache.check()
        live = self.roster.live()
        held = [block_id for sequence in live for block_id in sequence.held_block_ids]
        assert self.cache.pool.num_used == len(set(held)), (self.cache.pool.num_used, len(set(held)))
        assert sum(sequence.num_claimed_blocks for sequence in live) == self._holdings.num_claimed
        assert all(sequence.num_placeholders >= 0 for sequence in live)
        assert all(NULL_BLOCK not in sequence.held_block_ids for sequence in live)
        assert len(self.roster.running) <= self.limits.max_sequences, len(self.roster.running)
        if not live:
            assert len(self._holdings.twins) == 0, len(self._holdings.twins)

    # --- inside

    def _refusal(self, admission: Admission) -> tuple[Refusal, str] | None:
        ticket = admission.ticket
        if ticket is not None and ticket.engine_boot_id != self._boot_id:
            return Refusal.WRONG_BOOT, "the ticket is for another process"
        if self.is_draining:
            return Refusal.DRAINING, "shutting down"
        if self._attempts.is_stale(admission.identity, admission.attempt):
            return Refusal.STALE, "an equal or higher attempt is known"
        return None

    def _room_refusal(self, admission: Admission, num_needed: int) -> str | None:
        if not self.roster.free_slots(admission.priority):
            return f"no slot; {len(self.roster)} sequences are here"
        if num_needed > self.num_room_blocks:
            return f"{num_needed} blocks are needed; {self.num_room_blocks} are left"
        return None

    def _supersede(self, admission: Admission, now_us: int) -> None:
        sequence_id = self._attempts.live_sequence(admission.identity)
        sequence = self.roster.get(sequence_id) if sequence_id is not None else None
        if sequence is not None:
            self._end(sequence, EndReason.CANCELLED, now_us)

    def _sequence_of(self, admission: Admission, now_us: int) -> Sequence:
        names = block_hashes(admission.ids, self.limits.block_size, admission.cache_salt, self._revision)
        sequence = Sequence(self._next_sequence_id, admission, now_us, names, self._revision_digest)
        self._next_sequence_id += 1
        return sequence

    def _enter(self, sequence: Sequence, num_needed: int, now_us: int) -> None:
        admission = sequence.admission
        self.totals.admitted += 1
        self._attempts.begin(admission.identity, admission.attempt, sequence.sequence_id)
        self._holdings.enter(sequence, num_needed)
        self.roster.add(sequence)
        if admission.time_left_us:
            heapq.heappush(self._deadlines, (now_us + admission.time_left_us, sequence.sequence_id))
        self.news.ticket(admission, TicketFate.ADMITTED)

    def _introduce(self, rows: Many[PlannedRow]) -> tuple[SequenceSpec, ...]:
        fresh = [planned.sequence for planned in rows if not planned.sequence.is_known_to_executor]
        for sequence in fresh:
            sequence.is_known_to_executor = True
        return tuple(sequence.spec() for sequence in fresh)

    def _prune(self, now_us: int) -> None:
        self._attempts.prune(now_us)
        self._gathers.prune(now_us)
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, sequence_id = heapq.heappop(self._deadlines)
            sequence = self.roster.get(sequence_id)
            if sequence is not None:
                self._end(sequence, EndReason.DEADLINE, now_us)

    def _return_starved(self, now_us: int) -> None:
        for sequence in tuple(self.roster.waiting):
            if sequence.waiting_since_us + RETURN_AFTER_US <= now_us:
                self._return(sequence, ReturnReason.NO_STEP, now_us)

    def _commit_row(self, planned: PlannedRow, output: RowOutput, now_us: int) -> None:
        sequence, row = planned.sequence, planned.row
        num_rows = len(row.chunk_ids) + max(0, len(output.ids) - 1)
        self.totals.tokens_computed += num_rows
        self.totals.tokens_drawn += len(output.ids)
        sequence.num_placeholders -= row.is_sampled
        if not sequence.is_live:
            self.totals.tokens_discarded += len(output.ids)
            return
        self._account(sequence, row.start, num_rows)
        if not output.is_usable:
            self.cache.forget(sequence.inserted_hashes)
            return self._end(sequence, EndReason.BAD_LOGITS, now_us)
        reason = self._take_ids(sequence, output, now_us)
        if planned.epoch == sequence.epoch:
            computed = row.start + num_rows
            sequence.num_planned = max(sequence.num_planned, computed)
            self._holdings.index(sequence, min(computed, len(sequence.token_ids)))
        if reason is not None:
            self._end(sequence, reason, now_us)

    def _account(self, sequence: Sequence, start: int, num_rows: int) -> None:
        end = start + num_rows
        num_again = max(0, min(end, sequence.num_peak_computed) - start)
        sequence.num_computed_tokens += num_rows
        sequence.num_recomputed_tokens += num_again
        sequence.num_peak_computed = max(sequence.num_peak_computed, end)
        self.totals.tokens_recomputed += num_again

    def _take_ids(self, sequence: Sequence, output: RowOutput, now_us: int) -> EndReason | None:
        """Appends drawn ids up to an end; the rest is discarded."""
        if not output.ids:
            return None
        first_index = sequence.num_output
        reason = None
        for drawn in output.ids:
            sequence.token_ids.append(drawn)
            reason = sequence.finish_reason()
            if reason is not None:
                break
        num_taken = sequence.num_output - first_index
        self.totals.tokens_discarded += len(output.ids) - num_taken
        if not sequence.has_first_token:
            sequence.has_first_token = True
            self.news.progress(sequence, now_us)
        self.news.new_ids(sequence, first_index, output, num_taken)
        sequence.is_suspect = False
        return reason

    def _end(self, sequence: Sequence, reason: EndReason, now_us: int) -> None:
        self._leave(sequence, State.ENDED, now_us)
        self._tell_end(sequence, reason)

    def _tell_end(self, sequence: Sequence, reason: EndReason) -> None:
        self.totals.ended[reason] += 1
        self.news.ended(sequence, reason)

    def _return(self, sequence: Sequence, reason: ReturnReason, now_us: int) -> None:
        self._leave(sequence, State.RETURNED, now_us)
        self.totals.returned[reason] += 1
        self.news.returned(sequence, reason)

    def _leave(self, sequence: Sequence, state: State, now_us: int) -> None:
        """Slot, blocks and the executor's memory of it go back."""
        admission = sequence.admission
        self.roster.remove(sequence, state)
        self._planner.freed_block_ids += self._holdings.leave(sequence, now_us)
        if sequence.is_known_to_executor:
            self._removed_ids.append(sequence.sequence_id)
        self._attempts.end(admission.identity, admission.attempt, now_us)
