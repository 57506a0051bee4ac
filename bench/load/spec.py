"""What one run of the load tool does: all of it, so that a seed repeats the run. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

WORD_COUNTS = (20, 40, 80, 160, 320)
"""The mix that the peers were measured with, drawn evenly."""
TOKEN_BINS = ((0.6, 1, 64), (0.3, 65, 256), (0.1, 257, 1024))
"""Share, least and most tokens; even within a bin."""


class SpecError(ValueError):
    """A run that cannot be: one line for its author."""


class Arrivals(enum.StrEnum):
    """How the gaps between arrivals of an open loop are drawn."""

    POISSON = "poisson"
    GAMMA = "gamma"
    UNIFORM = "uniform"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many streams; each sends its next request when its last one has ended."""

    num_streams: int = 1


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at their own times, whatever the server does."""

    rate_per_s: float
    arrivals: Arrivals = Arrivals.POISSON
    burstiness: float = 1.0
    """Shape of the gamma distribution: 1 is Poisson, below 1 comes in bursts, above 1 more evenly."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests arrive at the `at_s` of the recorded file's lines."""


Load = ClosedLoop | OpenLoop | Replay


class Lengths(enum.StrEnum):
    """Where the lengths of prompts come from."""

    WORDS = "words"
    """Evenly out of `word_counts`."""
    BINS = "bins"
    """By TOKEN_BINS."""
    FILE = "file"
    """A recorded file: one JSON object per line, see `bench.load.prompts`."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the prompts are. Each is unique from its first words on, but for a shared prefix."""

    lengths: Lengths = Lengths.WORDS
    word_counts: tuple[int, ...] = WORD_COUNTS
    file: Path | None = None
    num_turns: int = 1
    """More than one is a conversation: a session on a gateway, the whole history over HTTP."""
    shared_prefix_words: int = 0
    num_prefixes: int = 1
    """How many different shared prefixes there are."""


class Cache(enum.StrEnum):
    """The gateway's prefix cache; other servers keep their own default."""

    DEFAULT = "default"
    READ_ONLY = "read-only"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good if it meets each limit that is set."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Limit of the request's mean time between token events."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One run: where to, how much, of what."""

    target: str
    """grpc://host:port[,host:port], http://host:port, or process:COMMAND."""
    load: Load = ClosedLoop()
    inputs: Inputs = Inputs()
    num_requests: int | None = None
    """Measured conversations; the run ends with them or with `duration_s`, whichever comes first."""
    duration_s: float | None = None
    num_warmup: int = 50
    """Conversations in front that are sent alike and not measured."""
    max_tokens: int = 64
    ignore_eos: bool = True
    temperature: float = 0.0
    is_chat: bool = False
    """Through the model's chat template; conversations always are."""
    model: str = ""
    """Served name; empty is the only one, or the first that an HTTP server lists."""
    api_key: str = field(default="", repr=False)
    cache: Cache = Cache.DEFAULT
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields of an HTTP request's body."""
    slo: Slo = Slo()
    seed: int = 0
    timeout_s: float = 600.0
    """Of one request."""
    num_processes: int = 1
    label: str = ""
    """What the run is called in reports; empty is the target."""

    @property
    def name(self) -> str:
        return self.label or self.target

    @property
    def uses_chat(self) -> bool:
        return self.is_chat or self.inputs.num_turns > 1

    def check(self) -> None:
        """Raises SpecError."""
        if self.num_requests is None and self.duration_s is None and not isinstance(self.load, Replay):
            raise SpecError("a run needs a number of requests or a duration")
        if (isinstance(self.load, Replay) or self.inputs.lengths is Lengths.FILE) and not self.inputs.file:
            raise SpecError("a replay needs a recorded file")
        if isinstance(self.load, ClosedLoop) and self.load.num_streams < self.num_processes:
            raise SpecError(f"{self.num_processes} processes for {self.load.num_streams} streams")
        if isinstance(self.load, OpenLoop) and not self.load.rate_per_s > 0:
            raise SpecError(f"the rate must be above 0, not {self.load.rate_per_s}")
        if isinstance(self.load, OpenLoop) and not self.load.burstiness > 0:
            raise SpecError(f"burstiness must be above 0, not {self.load.burstiness}")
        counts = (self.max_tokens, self.num_processes, self.inputs.num_turns, self.inputs.num_prefixes)
        if min(*counts, *self.inputs.word_counts) < 1:
            raise SpecError("tokens, processes, turns, prefixes and words must be at least 1")
