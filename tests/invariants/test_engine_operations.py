"""Seeded random operations on the engine's core at both lags: every invariant after each, every id as alone.

PAGEMESH_OPERATIONS sets how many; `make exactness` asks for 100,000.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from services.contract.priority import Priority
from services.engine.core.admission import CachePolicy, Ticket
from services.engine.core.block_pool import BlockPool
from services.engine.core.outcome import EndReason, ReturnReason
from services.engine.core.prefix_cache import PrefixCache, Retention
from tests.support.engine_driver import BOOT, VOCAB, EngineDriver, write_script

NUM_OPERATIONS = int(os.environ.get("PAGEMESH_OPERATIONS", "2000"))
MAX_OUTPUT = 24
BAD_PROMPT = [96] * 21
NAN_PROMPT = [95] * 21

Alone = Callable[[tuple[int, ...], int], list[int]]
"""Output ids of a prompt, so many."""


class Traffic:
    """Random admits over a few beginnings, so that prefixes meet; remembers what each handle must come to."""

    def __init__(self, driver: EngineDriver, alone: Alone, seed: int) -> None:
        self.driver = driver
        self.rng = random.Random(seed)
        self.alone = alone
        self.asked: dict[int, tuple[tuple[int, ...], int, int]] = {}
        self.ticket_number = 0
        self.num_compared = 0
        bases = random.Random(0)
        self.bases = [[bases.randrange(VOCAB - 2) for _ in range(100)] for _ in range(3)]

    def operate(self) -> None:
        draw = self.rng.random()
        if draw < 0.22:
            self.admit()
        elif draw < 0.25:
            self.driver.cancel(self.rng.randrange(1, len(self.asked) + 2))
        elif draw < 0.255:
            self.driver.set.drop_stream(self.rng.randrange(1, 4), self.driver.now_us)
        elif draw < 0.26:
            self.driver.now_us += self.rng.choice((3_000, 400_000, 70_000_000))
        elif draw < 0.265:
            self.driver.set.release_retention(bytes([self.rng.randrange(3)]) * 16)
        else:
            self.driver.step()
        self.driver.set.check()
        self.compare()

    def admit(self) -> None:
        rng = self.rng
        ids = rng.choice(self.bases)[: rng.randint(1, 90)]
        ids = rng.choices((ids, BAD_PROMPT, NAN_PROMPT), (0.96, 0.02, 0.02))[0]
        num_output = rng.choice((0, 0, 0, 3))
        known = [*ids, *self.alone(tuple(ids), num_output)]
        limit = rng.choice((1, 2, 15, 16, 17, MAX_OUTPUT))
        self.ticket_number += 1
        ticket = Ticket("s", self.ticket_number, BOOT, self.ticket_number // 3, rng.choice((1, 1, 2)))
        handle = self.driver.admit(
            known,
            max(limit, num_output + 1),
            num_prompt_tokens=len(ids),
            request_id=f"r{rng.randrange(40)}",
            attempt=(1, self.ticket_number if rng.random() < 0.95 else 1),
            priority=rng.choice(list(Priority)),
            stream_id=rng.randrange(1, 4),
            salt=rng.choice((b"a", b"b")),
            policy=rng.choice((CachePolicy.USE, CachePolicy.USE, CachePolicy.READ_ONLY, CachePolicy.BYPASS)),
            retention=Retention(bytes([rng.randrange(3)]) * 16, 50_000) if rng.random() < 0.3 else None,
            ticket=rng.choice((ticket, None)),
            time_left_us=rng.choice((0, 0, 30_000)),
            age_us=rng.randrange(5_000_000),
        )
        self.asked[handle] = (tuple(ids), num_output, max(limit, num_output + 1))

    def compare(self) -> None:
        """Handles that are over came to what they come to alone."""
        told = self.driver.told
        for handle in [handle for handle in told if told[handle].num_ends]:
            end = told.pop(handle)
            ids, num_before, limit = self.asked[handle]
            expected = self.alone(ids, limit)[num_before:]
            assert end.ids == expected[: len(end.ids)], (handle, end, expected)
            if end.ended is not None and end.ended.reason is EndReason.LENGTH:
                assert len(end.ids) == len(expected)
            ending = end.ended or end.returned
            if ending is not None:
                counts = ending.counts
                assert 0 <= counts.num_cached_tokens < len(ids) + num_before
                assert counts.num_recomputed_tokens <= counts.num_computed_tokens
            self.num_compared += 1


@pytest.fixture(scope="module", params=[None, 24], ids=["all", "window"])
def window(request: pytest.FixtureRequest) -> int | None:
    return cast(int | None, request.param)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, window: int | None) -> Alone:
    """What a prompt comes to alone, without cache."""
    script = write_script(tmp_path_factory.mktemp("alone") / "script.json", window=window)
    driver = EngineDriver(script, num_blocks=64)
    memory: dict[tuple[int, ...], list[int]] = {}

    def run(ids: tuple[int, ...], num_output: int) -> list[int]:
        if ids not in memory:
            memory[ids] = driver.output(ids, MAX_OUTPUT, policy=CachePolicy.BYPASS)
        return memory[ids][:num_output]

    return run


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_operations_break_no_invariant_and_no_answer(
    tmp_path: Path, alone: Alone, window: int | None, lag: int, seed: int
) -> None:
    script = write_script(
        tmp_path / "script.json",
        {"prompt_ids": BAD_PROMPT, "raise_at": 5, "output_ids": list(alone(tuple(BAD_PROMPT), 5))},
        {"prompt_ids": NAN_PROMPT, "nan_at": 5, "output_ids": list(alone(tuple(NAN_PROMPT), 5))},
        window=window,
    )
    driver = EngineDriver(
        script, lag=lag, seed=seed, num_blocks=28, max_sequences=5, max_batch_tokens=64, chunk_tokens=20
    )
    traffic = Traffic(driver, alone, seed)
    for _ in range(NUM_OPERATIONS // 4):
        traffic.operate()
    driver.drain()
    traffic.compare()
    totals, pool = driver.set.totals, driver.set.cache.pool
    over = sum(totals.ended.values()) + sum(totals.returned.values()) + totals.dropped
    assert totals.admitted == over
    assert pool.num_used == 0 and pool.num_free + pool.num_cached == pool.num_total
    assert traffic.num_compared > NUM_OPERATIONS // 40
    assert totals.preemptions and totals.tokens_cached and driver.set.cache.num_evictions
    assert totals.returned[ReturnReason.SUSPECT] and totals.ended[EndReason.BAD_LOGITS]


def test_random_operations_on_the_pool_keep_free_used_and_cached_apart() -> None:
    rng = random.Random(4)
    cache = PrefixCache(BlockPool(40, seed=9))
    held: list[list[int]] = []
    for number in range(NUM_OPERATIONS):
        draw = rng.random()
        if draw < 0.4:
            block_id = cache.allocate(number)
            if block_id is not None:
                if not held or rng.random() < 0.4:
                    held.append([])
                rng.choice(held).append(block_id)
                if rng.random() < 0.5:
                    cache.insert(rng.randrange(60).to_bytes(16, "little"), block_id)
        elif draw < 0.6:
            found = cache.lookup(rng.randrange(60).to_bytes(16, "little"))
            if found is not None:
                cache.acquire(found)
                held.append([found])
        elif draw < 0.95 and held:
            retention = Retention(bytes([rng.randrange(3)]) * 16, rng.randrange(1, 500))
            cache.release(held.pop(rng.randrange(len(held))), number, rng.choice((None, retention)))
        elif draw < 0.97:
            cache.forget([rng.randrange(60).to_bytes(16, "little")])
        else:
            cache.release_retention(bytes([rng.randrange(3)]) * 16)
        cache.check()
        assert cache.pool.num_used == len({block_id for blocks in held for block_id in blocks})
    for blocks in held:
        cache.release(blocks, NUM_OPERATIONS)
    assert cache.pool.num_used == 0 and cache.num_evictions > 0
