"""Block names: fixed for good, and different whenever anything before or around differs."""

import hashlib
import struct

from hypothesis import given
from hypothesis import strategies as st

from services.contract.block_hash import ROOT, block_hash, block_hashes

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def test_name_is_what_the_contract_says() -> None:
    """Written out by hand: other engines implement the same."""
    digest = hashlib.sha256(b"revision").digest()
    content = bytes(16) + b"salt" + digest + struct.pack("<4I", 1, 2, 3, 2**32 - 1)
    expected = hashlib.blake2b(content, digest_size=16).digest()
    assert block_hash(ROOT, b"salt", digest, [1, 2, 3, 2**32 - 1]) == expected
    assert block_hashes([1, 2, 3, 2**32 - 1], 4, b"salt", "revision") == [expected]
    assert expected.hex() == "55e1351c401773968dfedb39e1ea6740"


@given(IDS)
def test_only_full_blocks_have_names(ids: list[int]) -> None:
    assert len(block_hashes(ids, 16, b"", "r")) == len(ids) // 16


@given(IDS, IDS, IDS)
def test_names_are_equal_exactly_as_far_as_ids_are(
    head: list[int], tail: list[int], other: list[int]
) -> None:
    ids, others = head + tail, head + other
    pairs = zip(block_hashes(ids, 4, b"", "r"), block_hashes(others, 4, b"", "r"), strict=False)
    for index, (name, second) in enumerate(pairs):
        end = 4 * (index + 1)
        assert (name == second) == (ids[:end] == others[:end])


def test_salt_and_revision_part_name_spaces() -> None:
    ids = list(range(16))
    names = {block_hashes(ids, 16, salt, revision)[0] for salt in (b"a", b"b") for revision in ("r", "s")}
    assert len(names) == 4


def test_a_kernel_block_is_named_by_its_last_hash_block() -> None:
    """Engines with blocks of 16 and of 256 agree on what a prefix is called."""
    ids = list(range(600))
    small, large = (block_hashes(ids, size, b"salt", "revision") for size in (16, 256))
    assert large == [small[15], small[31]]
