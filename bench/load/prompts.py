"""The conversations that a run sends: drawn lengths over prose, or a recorded file. A seed repeats them.

A recorded file has one JSON object per line: `prompt` (a text) or `turns` (texts of the user), and optionally
`max_tokens` and `at_s` (seconds after the start, for a replay).
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.load.spec import TOKEN_BINS, Inputs, Lengths, LoadSpec, SpecError

PROSE = Path(__file__).resolve().parents[2] / "LICENSE"
TOKENS_PER_WORD = 1.3
"""Of this prose, by the tokenizer of SmolLM2; the report has what the server counted."""
_MARK_TOKENS = 6
"""A mark is five digits and a colon."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one user says, turn by turn."""

    index: int
    turns: tuple[str, ...]
    max_tokens: int
    at_s: float = 0.0
    """Intended time of the first turn in a replay."""


def conversations(spec: LoadSpec) -> Iterator[Conversation]:
    """Without end, but for a recorded file, which is read once. Raises SpecError."""
    if spec.inputs.file is not None:
        return _recorded(spec.inputs.file, spec.max_tokens)
    return _drawn(spec.inputs, spec.max_tokens, spec.seed)


def _drawn(inputs: Inputs, max_tokens: int, seed: int) -> Iterator[Conversation]:
    generator = np.random.default_rng([seed, 2])
    words = PROSE.read_text().split()
    offset = int(generator.integers(100_000))  # another seed's prompts begin otherwise, too
    prefixes = [
        f"{_mark(seed, index)} {_passage(words, inputs.shared_prefix_words, generator)} "
        for index in range(inputs.num_prefixes)
        if inputs.shared_prefix_words
    ]
    for index in itertools.count():
        turns = [_turn(inputs, _mark(offset, index), words, generator) for _ in range(inputs.num_turns)]
        if prefixes:
            turns[0] = prefixes[int(generator.integers(len(prefixes)))] + turns[0]
        yield Conversation(index, tuple(turns), max_tokens)


def _mark(offset: int, index: int) -> str:
    """Differs from every other's: 7919 is prime to 100,000, so that neighbours share no first digits."""
    return f"{(offset + index) * 7919 % 100_000:05d}:"


def _turn(inputs: Inputs, mark: str, words: list[str], generator: np.random.Generator) -> str:
    if inputs.lengths is Lengths.WORDS:
        return f"{mark} {_passage(words, int(generator.choice(inputs.word_counts)), generator)}"
    shares = [share for share, _, _ in TOKEN_BINS]
    _, least, most = TOKEN_BINS[generator.choice(len(TOKEN_BINS), p=shares)]
    num_tokens = int(generator.integers(least, most + 1))
    num_words = round((num_tokens - _MARK_TOKENS) / TOKENS_PER_WORD)
    return f"{mark} {_passage(words, num_words, generator)}" if num_words > 0 else mark[:num_tokens]


def _passage(words: list[str], num_words: int, generator: np.random.Generator) -> str:
    start = int(generator.integers(len(words)))
    return " ".join(itertools.islice(itertools.cycle(words), start, start + num_words))


def _recorded(file: Path, max_tokens: int) -> Iterator[Conversation]:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}") from error
    rows = [_row(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise SpecError(f"{file} has no requests")
    rows.sort(key=lambda row: float(row.get("at_s", 0)))
    return iter([_conversation(index, row, max_tokens) for index, row in enumerate(rows)])


def _conversation(index: int, row: dict[str, Any], max_tokens: int) -> Conversation:
    turns = tuple(map(str, row["turns"])) if "turns" in row else (str(row["prompt"]),)
    return Conversation(index, turns, int(row.get("max_tokens", max_tokens)), float(row.get("at_s", 0)))


def _row(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{file}:{number}: {error}") from error
    if not isinstance(row, dict) or not ({"prompt", "turns"} & row.keys()):
        raise SpecError(f"{file}:{number}: a request has a prompt or turns")
    if not isinstance(row.get("turns", []), list):
        raise SpecError(f"{file}:{number}: turns is no list of texts")
    for name in ("at_s", "max_tokens"):
        if not isinstance(row.get(name, 0), int | float):
            raise SpecError(f"{file}:{number}: {name} is no number")
    return row
