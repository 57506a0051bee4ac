"""The index: what is found, what yields, and what neither evictions nor suspicion may leave behind."""

import pytest

from services.engine.core.block_pool import BlockPool
from services.engine.core.prefix_cache import PrefixCache, Retention

NUM_BLOCKS = 4


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockPool(NUM_BLOCKS + 1, seed=1))


def take(cache: PrefixCache) -> int:
    block_id = cache.allocate(0)
    assert block_id is not None
    return block_id


def cached_chain(cache: PrefixCache, *names: bytes, retention: Retention | None = None) -> list[int]:
    """One sequence's blocks, computed, indexed and given back."""
    block_ids = [take(cache) for _ in names]
    for name, block_id in zip(names, block_ids, strict=True):
        assert cache.insert(name, block_id)
    assert cache.release(block_ids, 0, retention) == []
    return block_ids


def found(cache: PrefixCache, *names: bytes) -> list[bool]:
    return [cache.lookup(name) is not None for name in names]


def test_an_evicted_block_is_not_found_and_serves_another_name(cache: PrefixCache) -> None:
    cached_chain(cache, b"a", b"b", b"c", b"d")
    block_id = take(cache)
    assert found(cache, b"a", b"b", b"c", b"d") == [True, True, True, False]
    assert cache.num_evictions == 1
    assert cache.insert(b"e", block_id) and cache.lookup(b"e") == block_id
    cache.check()


def test_a_prefix_outlives_its_sequel_and_recent_use_outlives_both(cache: PrefixCache) -> None:
    first = cached_chain(cache, b"a", b"b")
    cached_chain(cache, b"c", b"d")
    cache.acquire(first[0])
    cache.release(first[:1], 0)
    lost = []
    for _ in range(NUM_BLOCKS):
        before = {name for name in (b"a", b"b", b"c", b"d") if cache.lookup(name) is not None}
        take(cache)
        lost += [name for name in before if cache.lookup(name) is None]
    assert lost == [b"b", b"d", b"c", b"a"]
    assert cache.allocate(0) is None


def test_a_block_that_is_held_is_never_handed_out(cache: PrefixCache) -> None:
    held = cached_chain(cache, b"a")[0]
    cache.acquire(held)
    others = [take(cache) for _ in range(NUM_BLOCKS - 1)]
    assert held not in others and cache.allocate(0) is None
    assert cache.lookup(b"a") == held


def test_a_block_of_two_holders_stays_until_the_second_gives_it_back(cache: PrefixCache) -> None:
    block_id = take(cache)
    cache.insert(b"a", block_id)
    cache.acquire(block_id)
    cache.release([block_id], 0)
    assert cache.pool.is_used(block_id) and cache.pool.num_cached == 0
    cache.check()
    cache.release([block_id], 0)
    assert cache.pool.num_used == 0 and cache.pool.num_cached == 1
    cache.check()


def test_only_what_was_not_indexed_is_free_and_told_so(cache: PrefixCache) -> None:
    indexed, other = take(cache), take(cache)
    cache.insert(b"a", indexed)
    assert cache.release([indexed, other], 0) == [other]
    assert (cache.pool.num_free, cache.pool.num_cached) == (NUM_BLOCKS - 1, 1)


def test_retained_blocks_yield_last_until_their_time_is_over(cache: PrefixCache) -> None:
    cached_chain(cache, b"a", b"b", retention=Retention(b"s", ttl_us=1000))
    cached_chain(cache, b"c", b"d")
    assert cache.allocate(999) is not None and cache.allocate(999) is not None
    assert found(cache, b"a", b"b", b"c", b"d") == [True, True, False, False]
    assert cache.allocate(1000) is not None
    assert sorted(found(cache, b"a", b"b")) == [False, True]
    cache.check()


def test_what_is_suspect_is_found_no_more_and_its_holder_keeps_it(cache: PrefixCache) -> None:
    held, given_back = take(cache), take(cache)
    cache.insert(b"a", held)
    cache.insert(b"b", given_back)
    cache.release([given_back], 0)
    cache.forget([b"a", b"b", b"never"])
    assert found(cache, b"a", b"b") == [False, False]
    assert cache.pool.is_used(held) and cache.pool.num_cached == 0
    assert cache.release([held], 0) == [held]
    cache.check()
