"""What sequences have drawn and seen, on the device: bias, penalties and the min-tokens mask for all rows.

A sequence that asks for a penalty has a slot; its counts grow there, by what the device drew.
"""

from collections.abc import Sequence

import torch

from services.engine.sampling.sequence_state import SequenceState

_FIRST_SLOTS = 8


class PenaltyTable:
    """Counts [slots, vocab_size]; memory is taken as sequences ask for it."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)

    def add(self, state: SequenceState) -> None:
        """Gives a slot to a sequence that needs one."""
        if not _has_penalty(state):
            return
        slot = self._take_slot()
        self._slots[state.sequence_id] = slot
        self._counts[slot], self._seen[slot] = 0, False
        self._seen[slot, self._ids(list(state.seen_ids))] = True
        drawn = state.output_counts
        times = torch.tensor(list(drawn.values()), dtype=torch.int32, device=self._device)
        self._counts[slot, self._ids(list(drawn))] = times

    def remove(self, sequence_id: int) -> None:
        slot = self._slots.pop(sequence_id, None)
        if slot is not None:
            self._free.append(slot)

    def adjust(self, scores: torch.Tensor, states: Sequence[SequenceState]) -> None:
        """Adds biases, applies penalties, masks stop ids, in place. `scores` [rows, vocab_size] float64."""
        self._add_biases(scores, states)
        self._penalise(scores, states)
        masked = [
            (row, token_id)
            for row, state in enumerate(states)
            if state.num_output_tokens < state.sampling.min_tokens
            for token_id in state.sampling.stop_ids
            if token_id < self._vocab_size
        ]
        if masked:
            rows, ids = self._ids(masked).unbind(1)
            scores[rows, ids] = -torch.inf

    def note(self, states: Sequence[SequenceState], ids: torch.Tensor, is_usable: torch.Tensor) -> None:
        """Counts one drawn id a row where the row is usable."""
        rows, slots = self._penalised(states)
        if rows:
            at = self._ids(slots), ids[rows]
            self._counts.index_put_(at, is_usable[rows].int(), accumulate=True)
            self._seen[at] |= is_usable[rows]

    def _add_biases(self, scores: torch.Tensor, states: Sequence[SequenceState]) -> None:
        biases = [(row, *pair) for row, state in enumerate(states) for pair in state.sampling.logit_bias]
        if biases:
            rows, ids, values = zip(*biases, strict=True)
            numbers = torch.tensor(values, dtype=torch.float64, device=self._device)
            scores.index_put_((self._ids(rows), self._ids(ids)), numbers, accumulate=True)

    def _penalise(self, scores: torch.Tensor, states: Sequence[SequenceState]) -> None:
        rows, slots = self._penalised(states)
        if not rows:
            return
        specs = [states[row].sampling for row in rows]
        repetition, presence, frequency = torch.tensor(
            [(spec.repetition_penalty, spec.presence_penalty, spec.frequency_penalty) for spec in specs],
            dtype=torch.float64,
            device=self._device,
        )[:, :, None].unbind(1)
        part, at = scores[rows], self._ids(slots)
        # CTRL (arXiv:1909.05858): positive scores are divided by the penalty, negative ones multiplied.
        penalised = torch.where(part > 0, part / repetition, part * repetition)
        part = torch.where(self._seen[at] & (repetition != 1), penalised, part)
        counts = self._counts[at]
        scores[rows] = torch.where(counts > 0, part - (presence + frequency * counts), part)

    def _penalised(self, states: Sequence[SequenceState]) -> tuple[list[int], list[int]]:
        """Rows of sequences that have a slot, and their slots."""
        slots = [self._slots.get(state.sequence_id) for state in states]
        rows = [row for row, slot in enumerate(slots) if slot is not None]
        return rows, [slot for slot in slots if slot is not None]

    def _take_slot(self) -> int:
        if not self._free:
            count = len(self._counts)
            added = max(_FIRST_SLOTS, count)
            self._counts = torch.cat((self._counts, self._counts.new_zeros(added, self._vocab_size)))
            self._seen = torch.cat((self._seen, self._seen.new_zeros(added, self._vocab_size)))
            self._free = list(range(count, count + added))
        return self._free.pop()

    def _ids(self, values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _has_penalty(state: SequenceState) -> bool:
    spec = state.sampling
    return spec.repetition_penalty != 1.0 or spec.presence_penalty != 0.0 or spec.frequency_penalty != 0.0
