"""The requests that both allocators of `utilization` get: lengths as a mesh meets them. Pure."""

import math
import random
from dataclasses import dataclass

from bench.load.spec import TOKEN_BINS

MEAN_OUTPUT = 120
MAX_OUTPUT = 512
"""What every request asks for; few need it."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request; how long its answer is, is known to the trace only."""

    num_prompt: int
    num_output: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output


def make_trace(num_requests: int, seed: int = 0) -> list[TracedRequest]:
    """Prompts by the bins, geometric answers."""
    dice = random.Random(seed)
    return [TracedRequest(_prompt_length(dice), _output_length(dice)) for _ in range(num_requests)]


def _prompt_length(dice: random.Random) -> int:
    weights = [share for share, _, _ in TOKEN_BINS]
    _, shortest, longest = dice.choices(TOKEN_BINS, weights)[0]
    return dice.randint(shortest, longest)


def _output_length(dice: random.Random) -> int:
    drawn = 1 + int(math.log(1 - dice.random()) / math.log(1 - 1 / MEAN_OUTPUT))
    return min(drawn, MAX_OUTPUT)
