"""Drives an executor as an engine would: answers forced token by token side by side, then greedy ones.

Every token goes through the executor's KV cache, so a quantized cache is scored as it serves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from bench.quality.reference import Judgement
from bench.quality.score import Score, score_tokens
from bench.quality.windows import Window
from services.engine.step import LogitsSource, LogitsWatcher
from tests.support.executor_driver import BLOCK_SIZE, Driven, ExecutorDriver

MAX_CHUNK = 512
"""Ids of a prompt in one step."""


def num_blocks_for(windows: Sequence[Window], num_greedy_tokens: int) -> int:
    """Blocks that hold all windows at once, the null block among them."""
    longest = [len(window.prompt_ids) + max(len(window.answer_ids), num_greedy_tokens) for window in windows]
    return 1 + sum(-(-length // BLOCK_SIZE) for length in longest)


def score_forced(
    executor: LogitsSource,
    driver: ExecutorDriver,
    windows: Sequence[Window],
    judgements: Sequence[Judgement],
) -> list[list[Score]]:
    """Scores of every answer id, by window."""
    scores: list[list[Score]] = [[] for _ in windows]
    driven = _prefill(driver, windows)
    places = {one.sequence_id: place for place, one in enumerate(driven)}

    def watch(sequence_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> None:
        at = [places[sequence_id] for sequence_id in sequence_ids]
        expected = np.stack([judgements[place].logits[len(scores[place])] for place in at])
        for place, score in zip(at, score_tokens(expected, logits), strict=True):
            scores[place].append(score)

    with _watched(executor, watch):
        while going := [
            place for place in range(len(windows)) if len(scores[place]) < len(windows[place].answer_ids)
        ]:
            driver.step(*((driven[place], 1) for place in going))
            for place in going:  # the answer's id instead of the drawn one
                driven[place].ids[-1] = windows[place].answer_ids[len(scores[place]) - 1]
    driver.finish(*driven)
    return scores


def greedy_answers(
    driver: ExecutorDriver, windows: Sequence[Window], num_tokens: int
) -> list[tuple[int, ...]]:
    """Its own answers, by window."""
    driven = _prefill(driver, windows)
    driver.generate(driven, num_tokens)
    answers = [tuple(one.drawn) for one in driven]
    driver.finish(*driven)
    return answers


def _prefill(driver: ExecutorDriver, windows: Sequence[Window]) -> list[Driven]:
    """All but the last prompt id of each window, one window after the other."""
    driven = [driver.add(window.prompt_ids) for window in windows]
    for one in driven:
        while (missing := len(one.ids) - 1 - one.num_computed) > 0:
            driver.step((one, min(MAX_CHUNK, missing)))
    return driven


@contextmanager
def _watched(executor: LogitsSource, watcher: LogitsWatcher) -> Iterator[None]:
    executor.watch_logits(watcher)
    try:
        yield
    finally:
        executor.watch_logits(None)
