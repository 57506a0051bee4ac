"""The independent judge of a model's numbers: transformers in fp32, no cache, one sequence at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TIE = 1e-4
"""Two logits closer than this may swap places."""


@dataclass
class Verdict:
    """How drawn ids compare with the oracle's greedy choices."""

    num_tokens: int = 0
    num_ties: int = 0
    """Drawn ids that differ where the oracle's top two are closer than TIE."""
    wrong: tuple[int, ...] = ()
    """Positions at which they differ otherwise."""


class TransformersOracle:
    """Greedy choices and log-probabilities of one model folder."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """[ids, embedding] float32."""
        return self._model(torch.tensor([list(ids)]), use_cache=False).logits[0]

    def judge(self, ids: Sequence[int], num_prompt_tokens: int, vocab_size: int) -> Verdict:
        """Teacher-forced: each drawn id against the oracle's choice after the ids before it."""
        logits = self.logits(ids[:-1])[num_prompt_tokens - 1 :, :vocab_size]
        drawn = torch.tensor(ids[num_prompt_tokens:])
        gaps = logits.max(dim=1).values - logits.gather(1, drawn[:, None])[:, 0]
        wrong = (torch.nonzero(gaps >= TIE)[:, 0] + num_prompt_tokens).tolist()
        num_ties = int(((gaps > 0) & (gaps < TIE)).sum())
        return Verdict(num_tokens=len(drawn), num_ties=num_ties, wrong=tuple(wrong))
