"""K2: what the prefix cache costs where nothing is ever found in it.

Two ways: tokens per second of the whole mesh with and without it, in pairs; and the CPU time of its own work
per request, measured on the running set alone, against what a request takes. The second resolves far less
than a percent.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from bench.generated import table
from bench.kv.trace import TracedRequest, make_trace
from bench.kv.utilization import PagedEngine
from bench.load.bootstrap import Interval, paired_ratio
from bench.load.run import Run, measure
from bench.load.spec import Cache, ClosedLoop, LoadSpec
from services.contract.block_hash import block_hashes
from services.engine.core.admission import CachePolicy
from tests.support.mesh import Mesh

NUM_STREAMS = 16
NUM_BLOCKS = 1025
"""Small, so that the cache is full soon and every block that is taken has to be evicted first."""
BAR_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class CacheCost:
    """`ratio` is of tokens per second, with the cache to without."""

    ratio: Interval
    with_tokens_per_s: float
    without_tokens_per_s: float
    num_hits: int
    own_us_per_request: float
    """Hashes, look-ups, index and eviction."""
    request_us: float
    """A request's share of the engine's time, without the cache."""

    @property
    def own_share(self) -> float:
        return self.own_us_per_request / self.request_us


def measure_cost(
    executor: str, model: Path | str, num_pairs: int, num_requests: int, report: Callable[[str], None]
) -> CacheCost:
    """Pairs have the same prompts, and take turns in who comes first."""
    settings = {"engine": {"num_blocks": NUM_BLOCKS, "max_sequences": NUM_STREAMS}}
    pairs = []
    with Mesh(engines=1, executor=executor, model=model, settings=settings) as mesh:
        for number in range(num_pairs):
            pairs.append(_pair(f"grpc://{mesh.gateways[0]}", number, num_requests))
            report(
                f"  pair {number + 1}/{num_pairs}: {pairs[-1][0]:.0f} with, {pairs[-1][1]:.0f} without, tok/s"
            )
    used, bypassed, hits, seconds = zip(*pairs, strict=True)
    return CacheCost(
        paired_ratio(used, bypassed),
        mean(used),
        mean(bypassed),
        round(sum(hits)),
        own_us_per_request(),
        1e6 * median(seconds),
    )


def _pair(target: str, number: int, num_requests: int) -> tuple[float, float, float, float]:
    """(tokens/s with, without, tokens found, seconds per request without)."""
    order = (Cache.DEFAULT, Cache.BYPASS) if number % 2 else (Cache.BYPASS, Cache.DEFAULT)
    runs = {cache: _run(target, cache, number, num_requests) for cache in order}
    used, bypassed = runs[Cache.DEFAULT].summary, runs[Cache.BYPASS].summary
    found = (used.cached_tokens.mean or 0) * used.num_requests
    return used.output_tokens_per_s, bypassed.output_tokens_per_s, found, 1 / bypassed.requests_per_s


def _run(target: str, cache: Cache, number: int, num_requests: int) -> Run:
    return measure(
        LoadSpec(
            target=target,
            load=ClosedLoop(NUM_STREAMS),
            num_requests=num_requests,
            num_warmup=NUM_STREAMS,
            cache=cache,
            seed=number,
        )
    )


def own_us_per_request(num_requests: int = 400) -> float:
    """CPU time that the cache takes of the engine's core, per request."""
    trace = make_trace(num_requests)
    used, bypassed = (
        min(_core_us(trace, policy) for _ in range(3)) for policy in (CachePolicy.USE, CachePolicy.BYPASS)
    )
    return max(0.0, used - bypassed) + _hashing_us(trace)


def _core_us(trace: Sequence[TracedRequest], policy: CachePolicy) -> float:
    engine = PagedEngine(trace, 16, policy)
    begin_s = time.process_time()
    while engine.num_waiting or engine.num_running:
        engine.step()
    return (time.process_time() - begin_s) / len(trace) * 1e6


def _hashing_us(trace: Sequence[TracedRequest]) -> float:
    """Prompts are hashed with every policy, but for the cache's sake."""
    prompts = [(10 + number,) * request.num_prompt for number, request in enumerate(trace)]
    begin_s = time.process_time()
    for ids in prompts:
        block_hashes(ids, 16, b"salt", "revision")
    return (time.process_time() - begin_s) / len(trace) * 1e6


def lines(cost: CacheCost) -> list[str]:
    low, high = (f"{1 - bound:+.1%}" for bound in (cost.ratio.high, cost.ratio.low))
    loss = f"{1 - cost.ratio.ratio:+.1%} [{low}, {high}]"
    rates = f"{cost.with_tokens_per_s:.0f} / {cost.without_tokens_per_s:.0f}; {cost.ratio.num_rounds} pairs"
    own = f"{cost.own_us_per_request:.0f} of {cost.request_us:.0f} µs a request"
    return table(
        ("cost of the prefix cache at 0% hits", "figure", "", "bar"),
        [
            ("tokens per second lost", loss, rates, f"< {BAR_SHARE:.0%}"),
            ("its own work", f"{cost.own_share:.2%}", own, f"< {BAR_SHARE:.0%}"),
            ("tokens found", str(cost.num_hits), "", "0"),
        ],
    )
