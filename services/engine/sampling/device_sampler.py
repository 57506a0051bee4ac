"""Draws ids where the logits are: the order and the float64 arithmetic of `sampler.py`, all rows at once.

The uniform number of a draw is computed on the host, from the sequence's seed and position. Rows are never
mixed: equal logits give equal ids, whatever the batch and the device. Runs on CPU tensors too, for proof.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.engine.sampling.penalty_table import PenaltyTable
from services.engine.sampling.randomness import uniform
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import DrawnLogprobs, RowOutput

FEWEST_CANDIDATES = 1024
"""So many of the likeliest ids decide nearly every draw; the rest look at all."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """Columns over rows [rows, 1], on the device."""

    temperature: torch.Tensor
    """1 where the draw is greedy."""
    limit: torch.Tensor
    """Candidates at most: top-k, else the vocabulary."""
    top_p: torch.Tensor
    min_p: torch.Tensor
    u: torch.Tensor
    has_top_k: torch.Tensor
    is_filtered: torch.Tensor
    """By top-p or min-p."""
    is_greedy: torch.Tensor


class DeviceSampler:
    """Draws for one vocabulary; see Sampler."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self.penalties = PenaltyTable(vocab_size, device)

    def draw(self, logits: torch.Tensor, states: Sequence[SequenceState]) -> list[RowOutput]:
        """Draws one id per row of `logits` [rows, >= vocab_size]; appends nothing to the states."""
        raw = logits[:, : self._vocab_size]
        is_finite = raw.isfinite().all(dim=1)
        scores = torch.where(is_finite[:, None], raw, 0).double()
        self.penalties.adjust(scores, states)
        best, greedy = scores.max(dim=1, keepdim=True)
        is_usable = is_finite & best[:, 0].isfinite()
        ids = greedy[:, 0] if _all_greedy(states) else self._draw_seeded(scores, best, greedy, states)
        self.penalties.note(states, ids, is_usable)
        logprobs = _logprobs(raw, ids, states)
        packed = torch.stack((ids, is_usable.long())).tolist()
        return [
            RowOutput(state.sequence_id, (token_id,), logprobs.get(row), is_usable=True)
            if ok
            else RowOutput(state.sequence_id, (), None, is_usable=False)
            for row, (state, token_id, ok) in enumerate(zip(states, *packed, strict=True))
        ]

    def _draw_seeded(
        self, scores: torch.Tensor, best: torch.Tensor, greedy: torch.Tensor, states: Sequence[SequenceState]
    ) -> torch.Tensor:
        spec = self._spec(states)
        shifted = torch.where(best.isfinite(), (scores - best) / spec.temperature, 0)
        top_k = max(state.sampling.top_k for state in states)
        size = min(max(FEWEST_CANDIDATES, top_k), self._vocab_size)
        ids, is_decided = _invert(shifted, spec, size)
        ids = torch.where(spec.is_greedy, greedy, ids)[:, 0]
        left = torch.nonzero(~(is_decided | spec.is_greedy)[:, 0])[:, 0]
        if len(left):
            part = _Spec(*(getattr(spec, name)[left] for name in _Spec.__slots__))
            ids[left] = _invert(shifted[left], part, self._vocab_size)[0][:, 0]
        return ids

    def _spec(self, states: Sequence[SequenceState]) -> _Spec:
        specs = [state.sampling for state in states]
        has_top_k = [0 < spec.top_k < self._vocab_size for spec in specs]
        columns = np.array(
            [
                (
                    spec.temperature or 1.0,
                    spec.top_k if is_cut else self._vocab_size,
                    spec.top_p,
                    spec.min_p,
                    uniform(spec.seed, spec.choice, len(state.ids)),
                    is_cut,
                    spec.top_p < 1.0 or spec.min_p > 0.0,
                    spec.temperature == 0.0,
                )
                for state, spec, is_cut in zip(states, specs, has_top_k, strict=True)
            ],
            np.float64,
        )
        moved = torch.from_numpy(columns).to(self._device)
        return _Spec(*torch.split(moved[:, :5], 1, dim=1), *torch.split(moved[:, 5:].bool(), 1, dim=1))


def _invert(scores: torch.Tensor, spec: _Spec, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidate [rows, 1] where the cumulative probability passes u; whether `size` ids decide it."""
    ids = likeliest(scores, size)
    places = torch.arange(size, device=scores.device)[None]
    weights = torch.where(places < spec.limit, scores.gather(1, ids).exp(), 0)
    cumulative = weights.cumsum(dim=1)
    within = torch.where(spec.has_top_k, cumulative[:, -1:], scores.exp().sum(dim=1, keepdim=True))
    limit = spec.limit.clamp(max=size)
    reach_p = _count((cumulative < spec.top_p * within) & (places < limit)) + 1
    reach_min = _count((weights >= spec.min_p) & (places < limit))
    kept = torch.where(spec.top_p < 1, limit.minimum(reach_p), limit)
    kept = torch.where(spec.min_p > 0, kept.minimum(reach_min), kept).clamp(min=1).long()
    last = cumulative.gather(1, kept - 1)
    target = spec.u * torch.where(spec.is_filtered, last, within)
    index = _count((cumulative <= target) & (places < kept))
    # Rounding at the end never draws a weightless candidate.
    index = torch.where(index < kept, index, _count((cumulative < last) & (places < kept)))
    is_whole = spec.limit <= size
    is_decided = is_whole | torch.where(spec.is_filtered, kept < size, target < cumulative[:, -1:])
    return ids.gather(1, index), is_decided


def likeliest(scores: torch.Tensor, size: int) -> torch.Tensor:
    """The `size` ids of highest score in each row, highest first; the lower first at ties, at the cut too."""
    vocab_size = scores.shape[1]
    if size >= vocab_size:
        return scores.sort(dim=1, descending=True, stable=True).indices
    cut = scores.topk(size, dim=1).values[:, -1:]
    above, at = scores > cut, scores == cut
    is_taken = above | (at & (at.cumsum(dim=1) <= size - _count(above)))
    ids = torch.arange(vocab_size, device=scores.device)
    ids = torch.where(is_taken, ids, vocab_size).topk(size, dim=1, largest=False, sorted=True).values
    order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _count(flags: torch.Tensor) -> torch.Tensor:
    return flags.sum(dim=1, keepdim=True)


def _all_greedy(states: Sequence[SequenceState]) -> bool:
    return all(state.sampling.temperature == 0.0 for state in states)


def _logprobs(
    raw: torch.Tensor, ids: torch.Tensor, states: Sequence[SequenceState]
) -> dict[int, tuple[DrawnLogprobs, ...]]:
    """Log-softmax (natural) of the raw logits by row: the chosen id, then the likeliest."""
    rows = [row for row, state in enumerate(states) if state.sampling.logprobs is not None]
    if not rows:
        return {}
    wanted = [states[row].sampling.logprobs or 0 for row in rows]
    scores = torch.nan_to_num(raw[rows]).double()
    size = min(max(wanted), scores.shape[1])
    chosen = ids[rows][:, None]
    shown = torch.cat((chosen, likeliest(scores, size)), dim=1) if size else chosen
    values = scores.gather(1, shown) - scores.logsumexp(dim=1, keepdim=True)
    pairs = zip(rows, wanted, shown.tolist(), values.tolist(), strict=True)
    return {
        row: (DrawnLogprobs(tuple(names[: 1 + count]), tuple(numbers[: 1 + count])),)
        for row, count, names, numbers in pairs
    }
