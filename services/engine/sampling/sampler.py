"""Draws ids from logits: bias, penalties, min-tokens mask, temperature, top-k, top-p, min-p, inverse CDF.

A row's float64 arithmetic never sees its neighbours, so equal logits give equal ids whatever the batch.
Candidates stand by (probability descending, id ascending). Knows no text and no KV cache.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from services.engine.sampling.randomness import uniform
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import DrawnLogprobs, RowOutput, SamplingSpec

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_SIZES = (128, 1024, 8192)
"""Draws without top-k look at so many of the likeliest ids before they sort them all."""


class Sampler:
    """Draws for one vocabulary. Ids at or beyond `vocab_size` (a padded embedding) are never drawn."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def draw(
        self, logits: torch.Tensor, states: Sequence[SequenceState], likeliest: Sequence[int] | None = None
    ) -> list[RowOutput]:
        """Draws one id per row of `logits` [rows, >= vocab_size], row i for `states[i]`; appends nothing.

        A row with any value that is not finite, or with every id masked, is not usable; the others are.
        `likeliest`: the lowest id of each row's highest logit, -1 if one is not finite, where it is known.
        """
        rows = logits[:, : self._vocab_size].detach().to("cpu", torch.float32).numpy()
        known = _likeliest_ids(rows) if likeliest is None else likeliest
        return [
            self._draw_row(row, state, best) for row, state, best in zip(rows, states, known, strict=True)
        ]

    def _draw_row(self, raw: npt.NDArray[np.float32], state: SequenceState, best: int) -> RowOutput:
        chosen = self._choose(raw, state, best) if best >= 0 else None
        if chosen is None:
            return RowOutput(sequence_id=state.sequence_id, ids=(), logprobs=None, is_usable=False)
        num_likeliest = state.sampling.logprobs
        logprobs = None if num_likeliest is None else (_logprobs(raw, chosen, num_likeliest),)
        return RowOutput(sequence_id=state.sequence_id, ids=(chosen,), logprobs=logprobs, is_usable=True)

    def _choose(self, raw: npt.NDArray[np.float32], state: SequenceState, best: int) -> int | None:
        """Gives None if every id is masked or an adjustment left the finite numbers."""
        spec = state.sampling
        if spec.temperature == 0.0 and not _is_adjusted(state):
            return best
        scores = raw.astype(np.float64)
        _adjust(scores, state)
        best = int(scores.argmax())  # the lowest id at ties; NaN counts as the highest
        if not np.isfinite(scores[best]):
            return None
        if spec.temperature == 0.0:
            return best
        scores -= scores[best]
        scores /= spec.temperature
        return _invert(scores, spec, uniform(spec.seed, spec.choice, len(state.ids)))


def _likeliest_ids(rows: npt.NDArray[np.float32]) -> list[int]:
    is_finite = np.isfinite(rows.min(axis=1)) & np.isfinite(rows.max(axis=1))
    return [int(row.argmax()) if ok else -1 for row, ok in zip(rows, is_finite, strict=True)]


def _is_adjusted(state: SequenceState) -> bool:
    spec = state.sampling
    has_penalty = (
        spec.repetition_penalty != 1.0 or spec.presence_penalty != 0.0 or spec.frequency_penalty != 0.0
    )
    return bool(spec.logit_bias) or has_penalty or _is_masked(state)


def _is_masked(state: SequenceState) -> bool:
    return bool(state.sampling.stop_ids) and state.num_output_tokens < state.sampling.min_tokens


def _adjust(scores: Floats, state: SequenceState) -> None:
    """Adds bias, applies penalties and masks stop ids, in place."""
    spec = state.sampling
    for token_id, bias in spec.logit_bias:
        scores[token_id] += bias
    if spec.repetition_penalty != 1.0:
        _penalise_repetition(scores, np.fromiter(state.seen_ids, np.int64), spec.repetition_penalty)
    if spec.presence_penalty != 0.0 or spec.frequency_penalty != 0.0:
        counts = state.output_counts
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float64, len(counts))
        scores[ids] -= spec.presence_penalty + spec.frequency_penalty * times
    if _is_masked(state):
        scores[[i for i in spec.stop_ids if i < len(scores)]] = -np.inf


def _penalise_repetition(scores: Floats, ids: Ids, penalty: float) -> None:
    """CTRL (arXiv:1909.05858): positive scores are divided by the penalty, negative ones multiplied."""
    seen = scores[ids]
    scores[ids] = np.where(seen > 0, seen / penalty, seen * penalty)


def _invert(scores: Floats, spec: SamplingSpec, u: float) -> int:
    """Finds the candidate at which the cumulative probability passes u. `scores` [vocab] have maximum 0.

    Looks at as few of the likeliest ids as decide it; the answer is that of the full sort.
    """
    has_top_k = 0 < spec.top_k < len(scores)
    limit = spec.top_k if has_top_k else len(scores)
    total = None if has_top_k else float(np.exp(scores).sum())
    is_filtered = spec.top_p < 1.0 or spec.min_p > 0.0
    for size in _sizes(limit, has_top_k):
        ids = _likeliest(scores, size)
        weights = np.exp(scores[ids])
        cumulative = np.cumsum(weights)
        mass = float(cumulative[-1]) if total is None else total
        num_kept = _num_kept(weights, cumulative, mass, spec)
        if is_filtered and (num_kept < size or size == limit):
            return int(ids[_pass(cumulative[:num_kept], u * float(cumulative[num_kept - 1]))])
        if not is_filtered and (u * mass < cumulative[-1] or size == limit):
            return int(ids[_pass(cumulative, u * mass)])
    raise AssertionError(limit)


def _sizes(limit: int, has_top_k: bool) -> Iterator[int]:
    if not has_top_k:
        yield from (size for size in _SIZES if size < limit)
    yield limit


def _likeliest(scores: npt.NDArray[np.floating], size: int) -> Ids:
    """The `size` ids of highest score, highest first, the lower id first at ties, at the cut as well."""
    if size >= len(scores):
        return np.argsort(-scores, kind="stable")
    cut = len(scores) - size
    candidates = np.flatnonzero(scores >= np.partition(scores, cut)[cut])
    return candidates[np.argsort(-scores[candidates], kind="stable")[:size]]


def _num_kept(weights: Floats, cumulative: Floats, mass: float, spec: SamplingSpec) -> int:
    """How many candidates top-p (the fewest that reach p) and min-p (p of the likeliest's weight, 1) keep."""
    num_kept = len(weights)
    if spec.top_p < 1.0:
        num_kept = min(num_kept, int(np.searchsorted(cumulative, spec.top_p * mass, side="left")) + 1)
    if spec.min_p > 0.0:
        num_kept = min(num_kept, int(np.count_nonzero(weights >= spec.min_p)))
    return max(num_kept, 1)


def _pass(cumulative: Floats, target: float) -> int:
    """First index whose cumulative weight is above target; never a weightless one by rounding at the end."""
    index = int(np.searchsorted(cumulative, target, side="right"))
    return index if index < len(cumulative) else int(np.searchsorted(cumulative, cumulative[-1], side="left"))


def _logprobs(raw: npt.NDArray[np.float32], chosen: int, num_likeliest: int) -> DrawnLogprobs:
    """Log-softmax (natural) of the raw logits: the chosen id, then the likeliest (at most the vocabulary)."""
    scores = raw.astype(np.float64)
    top = float(scores.max())
    log_total = top + float(np.log(np.exp(scores - top).sum()))
    likeliest = _likeliest(raw, num_likeliest) if num_likeliest > 0 else np.empty(0, np.int64)
    ids = (chosen, *likeliest.tolist())
    return DrawnLogprobs(ids=ids, values=tuple(float(scores[i]) - log_total for i in ids))
