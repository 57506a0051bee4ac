"""Judges output ids by transformers' fp32 logits, teacher-forced on those very ids.

One forward pass over prompt + output gives the oracle's logits at every output position, so a tie that was
broken the other way does not hide what follows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import SequenceSpec

TIE = 1e-4
"""Top two logits closer than this may be ordered either way."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one output compares with the oracle."""

    num_tokens: int
    num_ties: int
    """Positions where another id was within TIE of the oracle's (greedy) or the draw parted (seeded)."""
    wrong: tuple[int, ...]
    """Output indexes that no tie explains."""


class Oracle:
    """transformers in fp32 on the CPU, eager attention, no cache."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.inference_mode()
    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> torch.Tensor:
        """Float32 [len(output_ids), vocabulary]: row i is what output id i was chosen from."""
        ids = torch.tensor([[*prompt_ids, *output_ids[:-1]]])
        kept = len(output_ids)
        return self._model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0].float()

    def judge_greedy(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Verdict:
        """Each id must be the oracle's argmax, or within TIE of it."""
        logits = self.logits(prompt_ids, output_ids)
        chosen = logits[torch.arange(len(output_ids)), torch.tensor(list(output_ids))]
        top = logits.max(dim=-1)
        differs = top.indices != torch.tensor(list(output_ids))
        is_tie = (top.values - chosen) < TIE
        wrong = torch.nonzero(differs & ~is_tie).flatten().tolist()
        return Verdict(len(output_ids), int((differs & is_tie).sum()), tuple(wrong))

    def judge_seeded(self, spec: SequenceSpec, output_ids: Sequence[int]) -> Verdict:
        """Each id must be what the position-keyed draw gives on the oracle's logits; a parting is a tie.

        ``spec`` holds the prompt alone; the caller bounds ties at one in 500 tokens.
        """
        logits = self.logits(spec.ids, output_ids)
        sampler = Sampler(logits.shape[-1])
        state = SequenceState(spec)
        num_partings = 0
        for index, given in enumerate(output_ids):
            drawn = sampler.draw(logits[index : index + 1], [state])[0].ids
            num_partings += drawn != (given,)
            state.append(given)
        return Verdict(len(output_ids), num_partings, ())
