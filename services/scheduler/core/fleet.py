"""The fleet as one scheduler sees it: who is live, in order of load, and who has credit for which class.

It knows nothing of queues; it decides nothing but order.
"""

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.contract.priority import Priority
from services.scheduler.core.engines import NOTHING_UNREACHABLE, Engine, EngineFacts, is_reachable
from services.scheduler.core.request import CLASSES, Entry, Request


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


class ModelFleet:
    """Live engines of one model, in order of load, and by class those that are open."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}
        self._by_name: dict[str, Engine] = {}
        self._order: list[tuple[tuple[float, int, str], Engine]] = []
        self._held: set[str] = set()
        self.open: list[set[str]] = [set() for _ in range(CLASSES[-1] + 1)]
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
        boot_id = engine.facts.boot_id
        if engine.is_live:
            self._reorder(engine)
        else:
            self._remove(engine)
        is_open = engine.open_classes()
        if is_open != engine.is_open:
            engine.is_open = is_open
            for priority, is_in in zip(CLASSES, is_open, strict=True):
                (self.open[priority].add if is_in else self.open[priority].discard)(boot_id)

    def release_holds(self) -> None:
        """Opens what was held for someone."""
        for boot_id in tuple(self._held):
            self.release_hold(self._engines[boot_id])

    def hold(self, engine: Engine, entry: Entry, hold_from: Priority) -> None:
        """Lets the engine's room gather for an entry."""
        engine.hold, engine.hold_from = entry, hold_from
        entry.hold = engine
        self._held.add(engine.facts.boot_id)
        self.refresh(engine)

    def release_hold(self, engine: Engine) -> None:
        """Ends a hold."""
        self._unhold(engine)
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
            self._unhold(engine)
        self._unorder(engine)
        self._engines.pop(engine.facts.boot_id, None)
        if self._by_name.get(engine.facts.engine_id) is engine:
            del self._by_name[engine.facts.engine_id]

    def _unhold(self, engine: Engine) -> None:
        assert engine.hold is not None, engine.facts
        engine.hold.hold = None
        engine.hold = engine.hold_from = None
        self._held.discard(engine.facts.boot_id)

    def _reorder(self, engine: Engine) -> None:
        boot_id = engine.facts.boot_id
        if boot_id not in self._engines:
            self._engines[boot_id] = self._by_name[engine.facts.engine_id] = engine
        load_key = (engine.load, engine.last_ticket, boot_id)
        if load_key != engine.load_key:
            self._unorder(engine)
            engine.load_key = load_key
            bisect.insort(self._order, (load_key, engine), key=_key)

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
        self.version = 0
        """Rises when what the fleet offers may have changed."""
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
        engine.credit.set_room({})
        self.refresh(engine)
        return [each for each in self._engines.values() if each.is_up and _replaces(facts, each.facts)]

    def down(self, engine: Engine) -> None:
        """Its Watch stream is down."""
        engine.is_up = False
        engine.credit.set_room({})
        self.refresh(engine)

    def forget_if_dead(self, engine: Engine) -> None:
        """Drops a dead process whose tickets have ended."""
        if not engine.is_up and engine.credit.num_unnamed == 0:
            self._engines.pop(engine.facts.boot_id, None)

    def refresh(self, engine: Engine) -> None:
        """Reorders an engine after a change of its state."""
        model, was_live = engine.facts.model, engine.load_key is not None
        fleet = self._models.get(model)
        if fleet is None:
            fleet = self._models[model] = ModelFleet()
        fleet.refresh(engine)
        if was_live != engine.is_live:
            self.version += 1
        if not engine.is_live and not len(fleet):
            del self._models[model]

    def models(self) -> tuple[ModelFacts, ...]:
        """What the fleet offers, by model."""
        return tuple(fleet.facts(model) for model, fleet in sorted(self._models.items()))


def _replaces(new: EngineFacts, old: EngineFacts) -> bool:
    is_same_place = (new.engine_id, new.address) == (old.engine_id, old.address)
    return is_same_place and new.boot_id != old.boot_id
