"""The position-keyed uniform number."""

import hashlib

import pytest

from services.engine.sampling.randomness import uniform


@pytest.mark.parametrize(
    ("seed", "choice", "position"), [(0, 0, 0), (42, 0, 17), (42, 3, 17), (2**64 - 1, 2**32 - 1, 2**32 - 1)]
)
def test_is_the_top_53_bits_of_the_digest(seed: int, choice: int, position: int) -> None:
    key = seed.to_bytes(8, "little") + choice.to_bytes(4, "little") + position.to_bytes(4, "little")
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    value = uniform(seed, choice, position)
    assert value == (digest // 2**11) / 2**53
    assert 0.0 <= value < 1.0


def test_known_values() -> None:
    """Written down once: streams that move between versions need the derivation unchanged."""
    assert [uniform(42, 0, position) for position in range(3)] == [
        0.013842768924102522,
        0.8575571638968903,
        0.8232227561162624,
    ]


def test_each_part_of_the_key_matters() -> None:
    values = {
        uniform(seed, choice, position) for seed in range(9) for choice in range(9) for position in range(9)
    }
    assert len(values) == 9**3
