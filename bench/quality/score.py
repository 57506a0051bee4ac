"""How far one next-token distribution is from another, and what many such distances come to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """One token: fp32 against an option."""

    kl: float
    """KL(fp32 || option), nats."""
    expected_id: int
    """fp32's likeliest id."""
    given_id: int
    """The option's."""
    expected_probability: float
    """fp32's probability of its likeliest id."""
    given_probability: float
    """The option's probability of fp32's likeliest id."""

    @property
    def agrees(self) -> bool:
        return self.expected_id == self.given_id


@dataclass(frozen=True, slots=True)
class Summary:
    """Many tokens."""

    num_tokens: int
    top1: float
    """Share of tokens whose likeliest id is the same."""
    mean_kl: float
    p99_kl: float
    worst_kl: float


def score_tokens(expected: Logits, given: Logits) -> list[Score]:
    """Scores rows of raw logits, [rows, vocabulary] both."""
    assert expected.shape == given.shape, (expected.shape, given.shape)
    expected_log, given_log = _log_softmax(expected), _log_softmax(given)
    kl = (np.exp(expected_log) * (expected_log - given_log)).sum(axis=1)
    best = expected.argmax(axis=1)
    rows = np.arange(len(best))
    columns = zip(
        kl, best, given.argmax(axis=1), expected_log[rows, best], given_log[rows, best], strict=True
    )
    return [
        Score(max(float(kl), 0.0), int(first), int(other), float(np.exp(p)), float(np.exp(q)))
        for kl, first, other, p, q in columns
    ]


def summarize(scores: Sequence[Score]) -> Summary:
    kl = np.array([score.kl for score in scores])
    return Summary(
        num_tokens=len(scores),
        top1=float(np.mean([score.agrees for score in scores])),
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        worst_kl=float(kl.max()),
    )


def first_divergence(expected: Sequence[int], given: Sequence[int]) -> int:
    """Index of the first id that differs; their length if none does."""
    pairs = enumerate(zip(expected, given, strict=True))
    return next((index for index, (one, other) in pairs if one != other), len(expected))


def _log_softmax(logits: Logits) -> Floats:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs
