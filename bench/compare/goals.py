"""What was asked of the comparison, and whether it is so. Pure."""

from dataclasses import dataclass

from bench.compare.mesh import BF16, INT8
from bench.compare.results import Results, own
from bench.load.bootstrap import Interval

VLLM = "vLLM"
THROUGHPUT_GOALS = ((BF16, 1, 1.0), (BF16, 16, 3.0), (BF16, 32, 3.0), (INT8, 1, 2.0), (INT8, 16, 4.0))
"""Row of pagemesh, streams, times the best peer."""
TTFT_SHARE = 1 / 3
"""Of vLLM's, at 16 streams."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the verdict."""

    text: str
    figure: str
    is_met: bool | None
    """None if there is nothing to compare with."""


def goals(results: Results) -> list[Goal]:
    return [*(_throughput(results, *goal) for goal in THROUGHPUT_GOALS), _first_token(results)]


def _throughput(results: Results, weights: str, num_streams: int, times: float) -> Goal:
    peer = results.best_peer(num_streams)
    text = f"{weights} ≥ {times:g} × the best peer, {streams_text(num_streams)}"
    found = results.ratio(own(weights), peer, num_streams) if peer else None
    if peer is None or found is None:
        return Goal(text, "nothing to compare", None)
    rates = (
        f"{results.rate(own(weights), num_streams):.0f} against {results.rate(peer, num_streams):.0f} tok/s"
    )
    return Goal(text, f"{interval_text(found)} ({peer}: {rates})", found.ratio >= times)


def _first_token(results: Results) -> Goal:
    text = "bf16's TTFT ≤ a third of vLLM's, 16 streams"
    if not results.of(own(BF16), 16) or not results.of(VLLM, 16):
        return Goal(text, "nothing to compare", None)
    mine, theirs = results.ttft_ms(own(BF16), 16), results.ttft_ms(VLLM, 16)
    share = mine / theirs
    return Goal(text, f"{share:.2f} ({mine:.0f} against {theirs:.0f} ms, P50)", share <= TTFT_SHARE)


def interval_text(found: Interval) -> str:
    if found.num_rounds < 2:
        return f"{found.ratio:.2f} × (one round)"
    return f"{found.ratio:.2f} × [{found.low:.2f}, {found.high:.2f}]"


def streams_text(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"
