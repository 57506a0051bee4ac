"""One engine process as this scheduler sees it: what it declared, what it reported, what it may be sent.

It knows nothing of queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.contract.priority import Priority
from services.scheduler.core.credit import Credit, Room
from services.scheduler.core.request import CLASSES, Entry, Request

KEEP_S = 10.0
"""How long a lower class keeps its share of the slots after its turn."""

NOT_OPEN = (False,) * len(CLASSES)
NOTHING_UNREACHABLE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine process declares of itself; constant while it lives."""

    engine_id: str
    boot_id: str
    address: str
    model: str
    fingerprint_hash: str = ""
    revision: str = ""
    block_size: int = 16
    max_model_len: int = 0
    max_pool_tokens: int = 0
    max_sequences: int = 0
    vocab_size: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine's state for this scheduler, and the tickets it met since the last report."""

    room: Mapping[Priority, Room]
    admitted: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    num_running: int = 0
    num_waiting: int = 0
    is_draining: bool = False


@dataclass(slots=True, eq=False)
class Engine:
    """One engine process. It stays known after its death until its tickets have ended."""

    facts: EngineFacts
    credit: Credit = field(default_factory=Credit)
    is_up: bool = True
    is_draining: bool = False
    has_reported: bool = False
    num_running: int = 0
    num_waiting: int = 0
    reported_at: float = 0.0
    last_ticket: int = 0
    kept_until: float = 0.0
    hold: Entry | None = None
    """Entry whose room gathers here."""
    hold_from: Priority | None = None
    """The classes from this one down are shut out meanwhile."""
    is_open: tuple[bool, ...] = NOT_OPEN
    """By class, as its fleet has it."""
    load_key: tuple[float, int, str] | None = None
    """Its place in the order of load, if it is in it."""

    @property
    def is_live(self) -> bool:
        """Watch is up and the engine takes admits."""
        return self.is_up and not self.is_draining

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is on its way: it admits up to the whole pool."""
        has_work = self.num_running or self.num_waiting or self.credit.num_unnamed
        return self.has_reported and not has_work

    @property
    def load(self) -> float:
        """Sequences there and on their way, per slot."""
        busy = self.num_running + self.num_waiting + self.credit.num_unnamed
        return busy / max(self.facts.max_sequences, 1)

    def take(self, report: EngineReport, now: float) -> None:
        """Believes a report; the tickets it names are released before."""
        if now >= self.kept_until:
            self.credit.num_kept = 0
        self.credit.set_room(report.room)
        self.num_running, self.num_waiting = report.num_running, report.num_waiting
        self.is_draining = report.is_draining
        self.has_reported, self.reported_at = True, now

    def keep(self, lower_class_every: int, now: float) -> None:
        """A lower class had its turn here: for a while a share of the slots it holds is not taken away."""
        if self.facts.max_sequences > 1:
            self.credit.num_kept = max(self.facts.max_sequences // lower_class_every, 1)
            self.kept_until = now + KEEP_S

    def can_hold(self, request: Request) -> bool:
        """True if it could take the request when empty."""
        facts = self.facts
        return (
            request.num_sequences <= facts.max_sequences
            and request.num_total_tokens <= facts.max_model_len
            and request.num_total_tokens <= facts.max_pool_tokens
        )

    def tokens_of(self, request: Request) -> int:
        """Room the request takes: whole blocks; further choices share the prompt's and add one block each."""
        size = max(self.facts.block_size, 1)
        return (-(-request.num_prompt_tokens // size) + request.num_sequences - 1) * size

    def covers(self, request: Request) -> bool:
        """True if there is credit for all of the request's sequences now."""
        if self.credit.usable_sequences(request.priority) < request.num_sequences:
            return False
        return self.credit.usable_tokens(request.priority) >= self.tokens_of(request) or self.is_idle

    def open_classes(self) -> tuple[bool, ...]:
        """By class in order: would a small request have credit?"""
        if not self.is_live:
            return NOT_OPEN
        is_open = self.credit.open_classes(self.is_idle)
        if self.hold_from is None:
            return is_open
        return tuple(each and CLASSES[index] < self.hold_from for index, each in enumerate(is_open))


def is_reachable(engine: Engine, unreachable: Mapping[str, str]) -> bool:
    """False if the gateway said that its Run stream to this process is down (engine id -> boot id)."""
    return not unreachable or unreachable.get(engine.facts.engine_id) != engine.facts.boot_id


def usable(
    engines: Iterable[Engine], request: Request, unreachable: Mapping[str, str], avoided: Collection[str]
) -> Iterator[Engine]:
    """Engines that could take the request some time: big enough, reached, and not to be avoided."""
    for engine in engines:
        if engine.facts.engine_id in avoided or not engine.can_hold(request):
            continue
        if is_reachable(engine, unreachable):
            yield engine
