"""Keeps the judge's answers in a folder between runs: fp32 takes minutes, most options seconds."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.quality.reference import Judgement
from bench.quality.windows import Window

Judge = Callable[[Window], Judgement]


def keep_in(folder: Path, key: str, judge: Judge) -> Judge:
    """A judge that reads what was judged of the same window under the same key, else asks and writes it."""

    def read_or_judge(window: Window) -> Judgement:
        content = repr((key, window.prompt_ids, window.answer_ids)).encode()
        path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.npz"
        if path.exists():
            with np.load(path) as kept:
                return Judgement(kept["logits"], tuple(kept["greedy_ids"].tolist()))
        judged = judge(window)
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, logits=judged.logits, greedy_ids=np.array(judged.greedy_ids))
        partial.replace(path)
        return judged

    return read_or_judge
