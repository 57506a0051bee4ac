"""Where a request's time went: one stage is open at any moment, so the stages partition the whole.

It reads no clock; it is told the time.
"""

from enum import Enum


class Stage(Enum):
    """Stages of a request, as in HopTimes."""

    RECEIVE = "receive"
    ENCODE = "encode"
    QUEUE = "queue"
    DISPATCH = "dispatch"
    PREFILL = "prefill"
    DECODE = "decode"
    DETOKENIZE = "detokenize"
    DELIVER = "deliver"


class HopClock:
    """Seconds per stage from arrival on."""

    def __init__(self, arrived_s: float) -> None:
        self._stage = Stage.RECEIVE
        self._since_s = arrived_s
        self._spent = dict.fromkeys(Stage, 0.0)
        self._detokenize_s = 0.0
        self.arrived_s = arrived_s

    @property
    def stage(self) -> Stage:
        return self._stage

    def enter(self, stage: Stage, now: float) -> None:
        """Closes the open stage and opens this one."""
        if stage is self._stage:
            return
        self._spent[self._stage] += max(0.0, now - self._since_s)
        self._stage, self._since_s = stage, max(self._since_s, now)

    def split_prefill(self, prefill_s: float, now: float) -> None:
        """Books the end of the open dispatch as prefill: the engine tells afterwards how long it computed."""
        if self._stage is not Stage.DISPATCH:
            return
        begin_s = max(self._since_s, now - prefill_s)
        self.enter(Stage.PREFILL, begin_s)

    def add_detokenize(self, seconds: float) -> None:
        """Time inside decode that went into text."""
        self._detokenize_s += seconds

    def closed_spent(self, stage: Stage) -> float:
        """Seconds in a stage until it was last left."""
        return self._spent[stage]

    def spent(self, now: float) -> dict[Stage, float]:
        """Seconds per stage until now; their sum is now minus arrival."""
        spent = dict(self._spent)
        spent[self._stage] += max(0.0, now - self._since_s)
        moved = min(self._detokenize_s, spent[Stage.DECODE])
        spent[Stage.DECODE] -= moved
        spent[Stage.DETOKENIZE] += moved
        return spent
