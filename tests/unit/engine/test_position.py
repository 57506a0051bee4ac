"""A draw's number is keyed by the absolute position of the id, wherever prompt, admission or step begin."""

import torch

from services.engine.sampling.randomness import uniform
from services.engine.sampling.sampler import Sampler
from services.engine.sampling.sequence_state import SequenceState
from services.engine.step import SamplingSpec, SequenceSpec

NUM_IDS = 1000
EVEN = torch.zeros(1, NUM_IDS)
"""All ids are equally likely: the id drawn is the uniform number's first three digits."""


def drawn(num_known: int, num_prompt: int, sampler: Sampler) -> int:
    spec = SequenceSpec(1, (0,) * num_known, num_prompt, SamplingSpec(seed=9, choice=2))
    (output,) = sampler.draw(EVEN, [SequenceState(spec)])
    return output.ids[0]


def test_the_number_is_that_of_the_absolute_position() -> None:
    for position in range(1, 50):
        assert drawn(position, position, Sampler(NUM_IDS)) == int(uniform(9, 2, position) * NUM_IDS)


def test_where_the_prompt_ends_does_not_matter() -> None:
    for num_prompt in range(1, 20):
        assert drawn(20, num_prompt, Sampler(NUM_IDS)) == drawn(20, 20, Sampler(NUM_IDS))


def test_what_a_sampler_drew_before_does_not_matter() -> None:
    sampler = Sampler(NUM_IDS)
    once = [drawn(position, 1, sampler) for position in range(1, 20)]
    assert [drawn(position, 1, sampler) for position in range(19, 0, -1)] == once[::-1]
