"""The main rounds' figures by row and number of streams. Pure."""

from collections.abc import Sequence
from statistics import mean, median

from bench.compare.configuration import OWN, row_of
from bench.compare.measurement import CHOOSING, Measurement
from bench.load.bootstrap import Interval, paired_ratio


class Results:
    """The main rounds' measurements by row and streams, for each of which one configuration was chosen."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._rows: dict[tuple[str, int], list[Measurement]] = {}
        for found in sorted(measurements, key=lambda it: it.round):
            if found.round != CHOOSING:
                self._rows.setdefault((row_of(found.configuration), found.num_streams), []).append(found)

    @property
    def names(self) -> list[str]:
        """Rows: each peer one, pagemesh one per kind of weights."""
        return sorted({name for name, _ in self._rows})

    @property
    def streams(self) -> list[int]:
        return sorted({count for _, count in self._rows})

    def of(self, name: str, num_streams: int) -> list[Measurement]:
        return self._rows.get((name, num_streams), [])

    def rate(self, name: str, num_streams: int) -> float:
        return mean(it.tokens_per_s for it in self.of(name, num_streams))

    def ttft_ms(self, name: str, num_streams: int) -> float:
        """Median over the requests of all rounds."""
        return median(self.ttfts_ms(name, num_streams))

    def ttfts_ms(self, name: str, num_streams: int) -> list[float]:
        return [ms for it in self.of(name, num_streams) for ms in it.ttft_ms]

    def best_peer(self, num_streams: int) -> str | None:
        peers = [name for name in self.names if not is_own(name) and self.of(name, num_streams)]
        return max(peers, key=lambda name: self.rate(name, num_streams), default=None)

    def ratio(self, name: str, other: str, num_streams: int) -> Interval | None:
        """Of tokens per second, over the rounds that both have."""
        mine = {it.round: it.tokens_per_s for it in self.of(name, num_streams)}
        theirs = {it.round: it.tokens_per_s for it in self.of(other, num_streams)}
        rounds = sorted(mine.keys() & theirs.keys())
        if not rounds:
            return None
        return paired_ratio([mine[number] for number in rounds], [theirs[number] for number in rounds])


def is_own(name: str) -> bool:
    return name.startswith(OWN)


def own(weights: str) -> str:
    return f"{OWN}: {weights}"
