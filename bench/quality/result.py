"""What one option came to: the whole, by length group and kind, divergences, and its worst tokens."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.quality.score import Score, Summary, summarize
from bench.quality.windows import GROUPS, KINDS, Window

NUM_WORST = 10


@dataclass(frozen=True, slots=True)
class WorstToken:
    """One of the tokens of largest KL."""

    window: Window
    index: int
    """In the window's answer."""
    score: Score


@dataclass(frozen=True, slots=True)
class OptionResult:
    """One option."""

    name: str
    total: Summary
    cells: Mapping[str, Summary]
    """By length group, then by kind."""
    divergences: Mapping[str, Sequence[int]]
    """By the same cells and window: first greedy id that differs; the number of greedy ids if none does."""
    num_greedy_tokens: int
    worst: Sequence[WorstToken]

    @property
    def median_divergence(self) -> float:
        return statistics.median(index for group in GROUPS for index in self.divergences.get(group, ()))


def judge_option(
    name: str,
    windows: Sequence[Window],
    scores: Sequence[Sequence[Score]],
    divergences: Sequence[int],
    num_greedy_tokens: int,
) -> OptionResult:
    """Takes scores and divergences by window."""
    cells = [cell for cell in (*GROUPS, *KINDS) if any(cell in (it.group, it.kind) for it in windows)]
    members = {
        cell: [place for place, window in enumerate(windows) if cell in (window.group, window.kind)]
        for cell in cells
    }
    tokens = [
        WorstToken(window, index, score)
        for window, row in zip(windows, scores, strict=True)
        for index, score in enumerate(row)
    ]
    return OptionResult(
        name=name,
        total=summarize([token.score for token in tokens]),
        cells={
            cell: summarize([score for place in places for score in scores[place]])
            for cell, places in members.items()
        },
        divergences={cell: [divergences[place] for place in places] for cell, places in members.items()},
        num_greedy_tokens=num_greedy_tokens,
        worst=sorted(tokens, key=lambda token: -token.score.kl)[:NUM_WORST],
    )
