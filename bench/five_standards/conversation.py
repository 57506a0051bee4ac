"""The workload: short answers to questions over one conversation of about 2,000 tokens."""

from collections.abc import Iterator
from itertools import count, cycle, islice
from pathlib import Path

PROSE = Path(__file__).resolve().parents[2] / "LICENSE"
NUM_TURNS = 12
"""Of the history: user and assistant in turn."""
WORDS_PER_TURN = 118
MAX_TOKENS = 12
"""Of an answer."""
TOPICS = ("liability", "patents", "trademarks", "contributions", "notices", "warranty", "redistribution")

Message = dict[str, str]


def history(num_turns: int = NUM_TURNS, words_per_turn: int = WORDS_PER_TURN) -> list[Message]:
    """Turns of plain prose."""
    words = iter(cycle(PROSE.read_text().split()))
    turns = []
    for number in range(num_turns):
        passage = " ".join(islice(words, words_per_turn))
        turns.append({"role": "assistant" if number % 2 else "user", "content": passage})
    return turns


def questions() -> Iterator[Message]:
    """Without end, no two alike."""
    for number, topic in zip(count(1), cycle(TOPICS), strict=False):
        yield {"role": "user", "content": f"Question {number}: what was said about {topic}, in a few words?"}
