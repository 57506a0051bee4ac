"""The fleet as one scheduler sees it: who is up, what each may still be sent, who is least loaded.

It knows nothing of queues; it decides nothing but order.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.contract.priority import Priority
from services.scheduler.credit import Credit, Room
from services.scheduler.request import Entry, Request

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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the fleet offers for one model: the largest live engine's limits."""

    model: str
    num_engines: int
    max_model_len: int
    max_pool_tokens: int
    max_sequences: int
    vocab_size: int
    block_size: int
    revision: str


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
    hold: Entry | None = None
    """Entry whose room gathers here."""
    hold_from: Priority | None = None
    """The classes from this one down are shut out meanwhile."""
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

    def take(self, report: EngineReport, lower_class_every: int, now: float) -> None:
        """Believes a report; the tickets it names are released before."""
        self.credit.set_room(report.room, self.facts.max_sequences // lower_class_every)
        self.num_running, self.num_waiting = report.num_running, report.num_waiting
        self.is_draining = report.is_draining
        self.has_reported, self.reported_at = True, now

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

    def is_open_for(self, priority: Priority) -> bool:
        """True if a small request of this class would have credit."""
        if not self.is_live or (self.hold_from is not None and priority >= self.hold_from):
            return False
        if self.credit.usable_sequences(priority) < 1:
            return False
        return self.credit.usable_tokens(priority) > 0 or self.is_idle


def is_reachable(engine: Engine, unreachable: Mapping[str, str]) -> bool:
    """False if the gateway said that its Run stream to this process is down (engine id -> boot id)."""
    return not unreachable or unreachable.get(engine.facts.engine_id) != engine.facts.boot_id


class ModelFleet:
    """Live engines of one model, in order of load, and by class those that are open."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._by_name: dict[str, Engine] = {}
        self._order: list[tuple[tuple[float, int, str], Engine]] = []
        self.open: dict[Priority, set[str]] = {priority: set() for priority in Priority}
        """Boot ids of engines with credit, by class."""

    def __len__(self) -> int:
        return len(self._engines)

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def named(self, engine_id: str) -> Engine | None:
        """The live process of that name met last."""
        return self._by_name.get(engine_id)

    def by_load(self) -> Iterator[Engine]:
        """Least loaded first; among equals the one that got a ticket longest ago."""
        return (engine for _, engine in self._order)

    def can_hold(self, request: Request, unreachable: Mapping[str, str] = NOTHING_UNREACHABLE) -> bool:
        """True if some engine could take it when empty."""
        engines = self._engines.values()
        return any(engine.can_hold(request) and is_reachable(engine, unreachable) for engine in engines)

    def refresh(self, engine: Engine) -> None:
        """Puts the engine where its state says it belongs; to be called after each change."""
        self._unorder(engine)
        boot_id = engine.facts.boot_id
        if engine.is_live:
            if boot_id not in self._engines:
                self._engines[boot_id] = self._by_name[engine.facts.engine_id] = engine
            engine.load_key = (engine.load, engine.last_ticket, boot_id)
            bisect.insort(self._order, (engine.load_key, engine), key=_key)
        else:
            self._remove(engine)
        for priority, boot_ids in self.open.items():
            if engine.is_open_for(priority):
                boot_ids.add(boot_id)
            else:
                boot_ids.discard(boot_id)

    def release_holds(self) -> None:
        """Opens what was held for someone."""
        for engine in self._engines.values():
            if engine.hold is not None:
                self.release_hold(engine)

    def hold(self, engine: Engine, entry: Entry, hold_from: Priority) -> None:
        """Lets the engine's room gather for an entry."""
        engine.hold, engine.hold_from = entry, hold_from
        entry.hold = engine
        self.refresh(engine)

    def release_hold(self, engine: Engine) -> None:
        """Ends a hold."""
        assert engine.hold is not None, engine.facts
        engine.hold.hold = None
        engine.hold = engine.hold_from = None
        self.refresh(engine)

    def facts(self, model: str) -> ModelFacts:
        """The largest limits among live engines; what must agree is the newest engine's word."""
        facts = [engine.facts for engine in self._engines.values()]
        newest = facts[-1]
        return ModelFacts(
            model=model,
            num_engines=len(facts),
            max_model_len=max(each.max_model_len for each in facts),
            max_pool_tokens=max(each.max_pool_tokens for each in facts),
            max_sequences=max(each.max_sequences for each in facts),
            vocab_size=min(each.vocab_size for each in facts),
            block_size=newest.block_size,
            revision=newest.revision,
        )

    def usable(self, priority: Priority, enough: int) -> tuple[int, int]:
        """Sequences and known ids for which there is credit; counting stops at `enough` sequences."""
        sequences = tokens = 0
        for boot_id in self.open[priority]:
            credit = self._engines[boot_id].credit
            sequences += credit.usable_sequences(priority)
            tokens += credit.usable_tokens(priority)
            if sequences >= enough:
                break
        return sequences, tokens

    def _remove(self, engine: Engine) -> None:
        if engine.hold is not None:
            engine.hold.hold = None
            engine.hold = engine.hold_from = None
        self._engines.pop(engine.facts.boot_id, None)
        if self._by_name.get(engine.facts.engine_id) is engine:
            del self._by_name[engine.facts.engine_id]

    def _unorder(self, engine: Engine) -> None:
        if engine.load_key is not None:
            index = bisect.bisect_left(self._order, engine.load_key, key=_key)
            assert self._order[index][1] is engine, engine.facts
            del self._order[index]
            engine.load_key = None


def _key(item: tuple[tuple[float, int, str], Engine]) -> tuple[float, int, str]:
    return item[0]


class Fleet:
    """All engine processes that were met and not yet forgotten."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._models: dict[str, ModelFleet] = {}
        self._nobody = ModelFleet()

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def get(self, boot_id: str) -> Engine | None:
        """The process, dead or alive."""
        return self._engines.get(boot_id)

    def of(self, model: str) -> ModelFleet:
        """Live engines of a model; an empty fleet if there is none."""
        return self._models.get(model, self._nobody)

    def hello(self, facts: EngineFacts) -> list[Engine]:
        """Meets a process, new or on a new call. Returns the processes that it replaces."""
        engine = self._engines.get(facts.boot_id)
        if engine is None:
            engine = self._engines[facts.boot_id] = Engine(facts)
        engine.is_up, engine.has_reported = True, False
        engine.credit.set_room({}, 0)
        self.refresh(engine)
        return [each for each in self._engines.values() if each.is_up and _replaces(facts, each.facts)]

    def down(self, engine: Engine) -> None:
        """Its Watch stream is down."""
        engine.is_up = False
        engine.credit.set_room({}, 0)
        self.refresh(engine)

    def forget_if_dead(self, engine: Engine) -> None:
        """Drops a dead process whose tickets have ended."""
        if not engine.is_up and engine.credit.num_unnamed == 0:
            self._engines.pop(engine.facts.boot_id, None)

    def refresh(self, engine: Engine) -> None:
        """Reorders an engine after a change of its state."""
        model = engine.facts.model
        fleet = self._models.setdefault(model, ModelFleet())
        fleet.refresh(engine)
        if not len(fleet):
            del self._models[model]

    def models(self) -> tuple[ModelFacts, ...]:
        """What the fleet offers, by model."""
        return tuple(fleet.facts(model) for model, fleet in sorted(self._models.items()))


def _replaces(new: EngineFacts, old: EngineFacts) -> bool:
    is_same_place = (new.engine_id, new.address) == (old.engine_id, old.address)
    return is_same_place and new.boot_id != old.boot_id


def usable(
    engines: Iterable[Engine], request: Request, unreachable: Mapping[str, str], avoided: Collection[str]
) -> Iterator[Engine]:
    """Engines that could take the request some time: big enough, reached, and not to be avoided."""
    for engine in engines:
        if engine.facts.engine_id in avoided or not engine.can_hold(request):
            continue
        if is_reachable(engine, unreachable):
            yield engine
