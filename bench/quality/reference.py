"""The judge: transformers in fp32, one window at a time, its prompt computed once for both questions."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from bench.quality.windows import Window


@dataclass(frozen=True, slots=True)
class Judgement:
    """What fp32 says about one window."""

    logits: npt.NDArray[np.float32]
    """[answer ids, vocabulary]: row i is what answer id i would be chosen from."""
    greedy_ids: tuple[int, ...]
    """Its own greedy answer."""


class Reference:
    """One model folder in fp32."""

    def __init__(self, folder: Path, vocab_size: int, num_greedy_tokens: int) -> None:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._vocab_size = vocab_size
        self._num_greedy_tokens = num_greedy_tokens

    @torch.inference_mode()
    def judge(self, window: Window) -> Judgement:
        known = self._model(_batch(window.prompt_ids), use_cache=True, logits_to_keep=1)
        forced = self._model(_batch(window.answer_ids[:-1]), cache=copy.deepcopy(known.cache))
        logits = torch.cat((known.logits[0], forced.logits[0]))[:, : self._vocab_size]
        return Judgement(logits.numpy().copy(), self._go_on(known))

    def _go_on(self, known: Any) -> tuple[int, ...]:
        ids: list[int] = []
        while len(ids) < self._num_greedy_tokens:
            ids.append(int(known.logits[0, -1, : self._vocab_size].argmax()))
            known = self._model(_batch(ids[-1:]), cache=known.cache)
        return tuple(ids)


def _batch(ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(ids)])
