"""Where a peer is ahead: everything that was measured is looked at, nothing is chosen by hand. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from bench.compare.goals import streams_text
from bench.compare.mesh import BF16
from bench.compare.results import Results, is_own, own

Figure = Callable[[Results, str, int], float]


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that a peer does better."""

    what: str
    mine: str
    theirs: str


def losses(results: Results, name: str = own(BF16)) -> list[Loss]:
    """All that was measured and in which a peer is ahead of this row; none is chosen by hand."""
    return [
        *(loss for count in results.streams for loss in _losses_at(results, name, count)),
        *_other_losses(results, name),
    ]


def _losses_at(results: Results, name: str, num_streams: int) -> list[Loss]:
    found = []
    for peer in (it for it in results.names if not is_own(it)):
        if not results.of(peer, num_streams) or not results.of(name, num_streams):
            continue
        at = f"{streams_text(num_streams)}, {peer}"
        rates = results.rate(name, num_streams), results.rate(peer, num_streams)
        if rates[0] < rates[1]:
            found.append(Loss(f"tokens/s, {at}", f"{rates[0]:.0f}", f"{rates[1]:.0f}"))
        for what, figure in _LATENCIES.items():
            mine, theirs = figure(results, name, num_streams), figure(results, peer, num_streams)
            if mine > theirs:
                found.append(Loss(f"{what}, {at}", f"{mine:.1f}", f"{theirs:.1f}"))
    return found


def _other_losses(results: Results, name: str) -> list[Loss]:
    found = []
    mine = _largest(results, name)
    for peer in (it for it in results.names if not is_own(it)):
        theirs = _largest(results, peer)
        for what, value in theirs.items():
            if value and mine[what] > value:
                found.append(Loss(f"{what}, {peer}", f"{mine[what]:.0f}", f"{value:.0f}"))
    return found


def _largest(results: Results, name: str) -> Mapping[str, float]:
    rows = [it for count in results.streams for it in results.of(name, count)]
    return {
        "memory under load, MiB": max((it.memory_mib for it in rows), default=0.0),
        "start, s": median([it.start_s for it in rows] or [0.0]),
    }


_LATENCIES: Mapping[str, Figure] = {
    "TTFT P50 ms": lambda results, name, count: results.ttft_ms(name, count),
    "ITL P50 ms": lambda results, name, count: median(it.itl_p50_ms for it in results.of(name, count)),
    "rhythm (std/mean of ITL)": lambda results, name, count: median(
        it.rhythm for it in results.of(name, count)
    ),
}
