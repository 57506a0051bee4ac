"""The pool's books: what is free, used and cached; the order in which blocks are handed out."""

import pytest

from services.engine.core.block_pool import BlockPool, shuffled_block_ids


def test_all_blocks_but_the_null_block_are_handed_out_once_in_shuffled_order() -> None:
    pool = BlockPool(33, seed=1)
    taken = [pool.take_free() for _ in range(32)]
    assert sorted(taken) == list(range(1, 33)) and taken != sorted(taken)
    assert pool.take_free() is None
    assert (pool.num_used, pool.num_cached, pool.num_free, pool.num_total) == (32, 0, 0, 32)


def test_the_order_is_a_function_of_the_seed() -> None:
    assert shuffled_block_ids(100, 1) == shuffled_block_ids(100, 1) != shuffled_block_ids(100, 2)


def test_a_block_is_given_back_with_its_last_reference() -> None:
    pool = BlockPool(3)
    block_id = pool.take_free()
    assert block_id is not None
    pool.share(block_id)
    assert not pool.release(block_id, keep_cached=False) and pool.is_used(block_id)
    assert pool.release(block_id, keep_cached=True)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 1, 1)
    pool.take_cached(block_id)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (1, 0, 1)
    pool.release(block_id, keep_cached=True)
    pool.uncache(block_id)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 0, 2)


def test_giving_back_too_much_is_noticed() -> None:
    pool = BlockPool(3)
    block_id = pool.take_free()
    assert block_id is not None
    pool.release(block_id, keep_cached=False)
    with pytest.raises(AssertionError):
        pool.release(block_id, keep_cached=False)
    with pytest.raises(AssertionError):
        pool.share(block_id)
