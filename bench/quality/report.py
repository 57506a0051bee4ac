"""Prints results: every cell of every option, never only the mean, and the text around the worst tokens."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from bench.quality.result import OptionResult, WorstToken
from bench.quality.score import Summary

WINDOW_TOKENS = 16
"""Shown before a worst token."""


def table(results: Sequence[OptionResult]) -> Iterator[str]:
    """Markdown: one row per option and cell."""
    yield "| option | cell | tokens | top-1 % | mean KL | p99 KL | worst KL | diverges at: median (least) |"
    yield "|---|---|---|---|---|---|---|---|"
    for result in results:
        every = [index for cell in result.cells for index in result.divergences[cell]]
        yield _line(result, "all", result.total, every)
        for cell, summary in result.cells.items():
            yield _line(result, cell, summary, result.divergences[cell])


def _line(result: OptionResult, cell: str, summary: Summary, divergences: Sequence[int]) -> str:
    limit = result.num_greedy_tokens
    median, least = statistics.median(divergences), min(divergences)
    shown = [f"none in {limit}" if index >= limit else f"{index:g}" for index in (median, least)]
    return (
        f"| {result.name} | {cell} | {summary.num_tokens} | {100 * summary.top1:.2f} | {summary.mean_kl:.2g} "
        f"| {summary.p99_kl:.2g} | {summary.worst_kl:.2g} | {shown[0]} ({shown[1]}) |"
    )


def worst_tokens(result: OptionResult, tokenizer: Tokenizer) -> Iterator[str]:
    """Markdown: the text before each, what fp32 and what the option would have said."""
    yield f"Worst tokens of {result.name}:"
    yield ""
    for token in result.worst:
        yield f"- {_sample(token, tokenizer)}"


def _sample(token: WorstToken, tokenizer: Tokenizer) -> str:
    window, score = token.window, token.score
    known = (*window.prompt_ids, *window.answer_ids[: token.index])[-WINDOW_TOKENS:]
    said = _text(tokenizer, [score.expected_id])
    other = "the same" if score.agrees else _text(tokenizer, [score.given_id])
    return (
        f"KL {score.kl:.2g} in {window.name}, token {token.index}: {_text(tokenizer, known)} → fp32 {said} "
        f"(p {score.expected_probability:.2f}, here {score.given_probability:.2f}), here {other}"
    )


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return f"`{tokenizer.decode(list(ids), skip_special_tokens=False)!r}`"


def as_json(result: OptionResult) -> dict[str, Any]:
    """Figures alone."""
    return {
        "option": result.name,
        "all": _figures(result.total),
        "cells": {cell: _figures(summary) for cell, summary in result.cells.items()},
        "median_divergence": result.median_divergence,
    }


def _figures(summary: Summary) -> dict[str, float]:
    return {
        "tokens": summary.num_tokens,
        "top1": summary.top1,
        "mean_kl": summary.mean_kl,
        "p99_kl": summary.p99_kl,
        "worst_kl": summary.worst_kl,
    }
