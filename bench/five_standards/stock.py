"""Rows 0 and 1: stock transformers, answering whole. Row 0 rebuilds tokenizer and model for every call."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from bench.five_standards.conversation import MAX_TOKENS, Message
from bench.five_standards.row import Call, Row, row_of

ATTENTIONS = ("eager", "sdpa")
NUM_CALLS = {"eager": 1, "sdpa": 3}
"""Eager attention takes seconds."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a call needs."""

    tokenizer: Any
    model: Any


def load(folder: Path, attention: str) -> Loaded:
    """As a user of the library does: every other setting is its default."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    return Loaded(AutoTokenizer.from_pretrained(folder), model)


def stock_rows(
    folder: Path, history: list[Message], questions: Iterator[Message], report: Callable[[str], None]
) -> list[Row]:
    """Row 0 and row 1, each with both kinds of attention."""
    rows = []
    for attention in ATTENTIONS:
        calls = [
            _naive_call(folder, attention, [*history, next(questions)]) for _ in range(NUM_CALLS[attention])
        ]
        rows.append(row_of(f"0. rebuilt per call, {attention}", calls))
        report(f"  {rows[-1].name}: {rows[-1].whole_ms:.0f} ms")
    for attention in ATTENTIONS:
        loaded = load(folder, attention)
        answer(loaded, [next(questions)])  # what the first call of a process costs is no standard's doing
        calls = [answer(loaded, [*history, next(questions)]) for _ in range(NUM_CALLS[attention])]
        rows.append(row_of(f"1. loaded once, {attention}", calls))
        report(f"  {rows[-1].name}: {rows[-1].whole_ms:.0f} ms")
    return rows


def _naive_call(folder: Path, attention: str, messages: list[Message]) -> Call:
    begin_s = time.perf_counter()
    loaded = load(folder, attention)
    loading_ms = 1000 * (time.perf_counter() - begin_s)
    call = answer(loaded, messages)
    return Call(*(loading_ms + part for part in (call.first_ms, call.whole_ms, call.computed_ms)))


def answer(loaded: Loaded, messages: list[Message]) -> Call:
    """The template is rendered to one string, which is encoded; the answer comes when it is whole."""
    begin_s = time.perf_counter()
    text = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = loaded.tokenizer(text, return_tensors="pt", add_special_tokens=False)
    first = _FirstToken()
    ids = loaded.model.generate(
        **inputs, max_new_tokens=MAX_TOKENS, min_new_tokens=MAX_TOKENS, do_sample=False, streamer=first
    )
    loaded.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
    whole_ms = 1000 * (time.perf_counter() - begin_s)
    assert first.at_s is not None
    return Call(whole_ms, whole_ms, 1000 * (first.at_s - begin_s))


class _FirstToken(BaseStreamer):
    """Notes when the first token exists; the prompt is put first."""

    def __init__(self) -> None:
        self._num_puts = 0
        self.at_s: float | None = None

    def put(self, value: object) -> None:
        self._num_puts += 1
        if self._num_puts == 2:
            self.at_s = time.perf_counter()

    def end(self) -> None:
        pass
