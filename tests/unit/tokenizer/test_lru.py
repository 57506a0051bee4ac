"""The cache keeps within its bound and drops the least recently used first."""

import random

from services.tokenizer.lru import Lru


def test_the_least_recently_used_goes_first() -> None:
    cache: Lru[str, int] = Lru(3)
    for key in "abc":
        cache.put(key, ord(key), 1)
    assert cache.get("a") == 97
    cache.put("d", 100, 1)
    assert [cache.get(key) for key in "abcd"] == [97, None, 99, 100]


def test_an_entry_over_the_bound_is_not_kept_and_replaces_nothing_else() -> None:
    cache: Lru[str, int] = Lru(3)
    cache.put("a", 1, 1)
    cache.put("b", 2, 4)
    assert (cache.get("a"), cache.get("b"), cache.cost) == (1, None, 1)
    cache.put("a", 3, 4)
    assert (cache.get("a"), cache.cost, len(cache)) == (None, 0, 0)


def test_cost_is_the_sum_of_what_is_kept() -> None:
    rng = random.Random(1)
    cache: Lru[int, int] = Lru(50)
    costs: dict[int, int] = {}
    for _ in range(5000):
        key, cost = rng.randrange(30), rng.randrange(12)
        cache.put(key, key, cost)
        costs[key] = cost
        kept = [key for key in costs if cache.get(key) is not None]
        assert cache.cost == sum(costs[key] for key in kept) <= 50
        assert len(cache) == len(kept)
