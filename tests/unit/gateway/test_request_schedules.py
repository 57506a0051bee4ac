"""The request's life under seeded random schedules, where peers die, freeze, thaw, repeat, refuse and return.

They do so at every message boundary, and callers resume. Always: one end, no gap in the numbering, the
undisturbed text."""

import json
import random
import string
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from services.contract.errors import Reason
from services.gateway.life.hop_clock import HopClock
from services.gateway.life.outbox import Outbox
from services.gateway.life.request import RequestLife
from services.gateway.life.request_words import (
    Admit,
    AdmitRefusal,
    Cancel,
    Command,
    Complete,
    Counts,
    EmitTokens,
    EndCause,
    EngineFacts,
    Enqueue,
    Fail,
    Placement,
    PlaceRefusal,
    RequestSpec,
    ReturnCause,
    Ticket,
    Tier,
    Withdraw,
)
from services.gateway.text.detokenizer import TokenTable
from services.gateway.text.output_text import OutputRules, OutputText

NUM_SEEDS = 1000
PROMPT = (0, 1)
STOP_ID = 26
COUNTS = Counts(0, 1, 0, 0)
TABLE = TokenTable.from_definition(
    json.dumps(
        {
            "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(string.ascii_lowercase)}},
            "added_tokens": [{"id": STOP_ID, "content": "<end>", "special": True}],
            "decoder": {"type": "ByteLevel"},
        }
    ).encode()
)

Event = Callable[[RequestLife, float], list[Command]]


def drawn(choice: int, index: int) -> int:
    """What every engine draws at that place; choice 1 ends by a stop id, choice 2 by a stop text."""
    if choice == 1 and index == 9:
        return STOP_ID
    return (7 * choice + 3 * index) % 26


@dataclass
class Sequence:
    """An admit at an engine."""

    admit: Admit
    num_ids: int
    engine: EngineFacts
    is_cut: bool = False
    """Its gateway thinks the engine dead."""


@dataclass
class World:
    """Peers that say what a real one could say, in an order that the seed draws."""

    rng: random.Random
    life: RequestLife
    outbox: Outbox
    max_tokens: int
    num_choices: int
    now: float = 0.0
    num_events: int = 0
    ends: list[Complete | Fail] = field(default_factory=list)
    enqueued: dict[int, Enqueue] = field(default_factory=dict)
    sequences: list[Sequence] = field(default_factory=list)
    messages: deque[Event] = field(default_factory=deque)
    boots: Counter[str] = field(default_factory=Counter)
    num_stale_sent: int = 0

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            assert not self.ends or isinstance(command, Cancel | Withdraw), command
            match command:
                case EmitTokens():
                    self.outbox.add(command)
                case Enqueue():
                    self.enqueued[command.place_id] = command
                case Withdraw():
                    self.enqueued.pop(command.place_id, None)
                case Admit():
                    self.admit(command)
                case Cancel():
                    self.cancel(command)
                case Complete() | Fail():
                    self.ends.append(command)

    def admit(self, admit: Admit) -> None:
        engine = self.engine(admit.placement.engine_id)
        choice, attempt = admit.choice, admit.attempt.gateway
        if admit.ticket.engine_boot_id != engine.boot_id or self.rng.random() < 0.1:
            is_reachable = self.rng.random() < 0.5
            self.say(lambda life, now: life.admit_unsent(choice, attempt, is_reachable, now))
            return
        self.carry_out(self.life.admitted(choice, attempt, engine, self.now))
        if self.rng.random() < 0.15:
            refusal = self.rng.choice([AdmitRefusal.NO_ROOM, AdmitRefusal.WRONG_BOOT, AdmitRefusal.DRAINING])
            self.say(lambda life, now: life.admit_refused(choice, attempt, refusal, "", now))
            return
        known = admit.output_ids
        assert known == [drawn(choice, i) for i in range(len(known))]
        self.sequences.append(Sequence(admit, len(known), engine))

    def cancel(self, cancel: Cancel) -> None:
        for sequence in self.sequences:
            attempt = sequence.admit.attempt.gateway
            if (sequence.admit.choice, attempt) == (cancel.choice, cancel.gateway_attempt):
                self.sequences.remove(sequence)
                self.end(sequence, EndCause.CANCELLED)
                return

    def engine(self, name: str) -> EngineFacts:
        return EngineFacts(name, f"{name}-{self.boots[name]}", "f", "r", Tier.BIT_IDENTICAL)

    def say(self, event: Event) -> None:
        self.messages.append(event)

    def end(self, sequence: Sequence, cause: EndCause) -> None:
        choice, attempt = sequence.admit.choice, sequence.admit.attempt.gateway
        self.say(lambda life, now: life.ended(choice, attempt, cause, COUNTS, now))

    def act(self) -> None:
        """One thing happens somewhere."""
        actions: list[tuple[float, Callable[[], None]]] = [(0.3, self.pass_time)]
        if self.messages:
            actions.append((5.0, self.deliver))
        if self.enqueued:
            actions.append((2.0, self.schedule))
        if self.sequences:
            actions += [(4.0, self.step), (0.12, self.die), (0.08, self.return_one), (0.1, self.freeze)]
        weights, choices = zip(*actions, strict=True)
        self.rng.choices(choices, weights)[0]()

    def pass_time(self) -> None:
        self.now += self.rng.choice([0.001, 0.05, 0.3])
        if self.life.timer_s != inf and self.rng.random() < 0.5:
            self.now = max(self.now, self.life.timer_s)
        if self.now >= self.life.timer_s:
            self.carry_out(self.life.tick(self.now))

    def deliver(self) -> None:
        self.carry_out(self.messages.popleft()(self.life, self.now))

    def schedule(self) -> None:
        place_id = self.rng.choice(list(self.enqueued))
        enqueue = self.enqueued.pop(place_id)
        lot = self.rng.random()
        if lot < 0.1:
            self.say(lambda life, now: life.place_broken(place_id, now))
        elif lot < 0.2:
            refusal = self.rng.choice([PlaceRefusal.NO_ENGINE, PlaceRefusal.DRAINING])
            self.say(lambda life, now: life.place_refused(place_id, refusal, None, now))
        else:
            engine = self.engine(self.rng.choice("ab"))
            tickets = tuple(Ticket("s", i, engine.boot_id, 1, 1) for i in range(enqueue.num_sequences))
            placement = Placement(engine.engine_id, engine.engine_id, tickets, 0, "none")
            self.say(lambda life, now: life.placed(place_id, placement, now))

    def step(self) -> None:
        sequence = self.rng.choice(self.sequences)
        choice, attempt = sequence.admit.choice, sequence.admit.attempt.gateway
        first = sequence.num_ids
        num = min(self.rng.choice([1, 1, 1, 2, 5]), self.max_tokens - first)
        # One that was left behind draws something else, as two devices may: accepted ids would show.
        ids = [(drawn(choice, first + i) + 5 * sequence.is_cut) % 26 for i in range(num)]
        ids = [STOP_ID if drawn(choice, first + i) == STOP_ID else drawn_id for i, drawn_id in enumerate(ids)]
        if STOP_ID in ids:
            ids = ids[: ids.index(STOP_ID) + 1]
        sequence.num_ids += len(ids)
        if sequence.is_cut:
            self.num_stale_sent += len(ids)
        for _ in range(2 if self.rng.random() < 0.05 else 1):
            self.say(lambda life, now: life.tokens(choice, attempt, first, ids, None, now=now))
        if not ids or ids[-1] == STOP_ID or sequence.num_ids >= self.max_tokens:
            self.sequences.remove(sequence)
            self.end(sequence, EndCause.STOP if ids and ids[-1] == STOP_ID else EndCause.LENGTH)

    def die(self) -> None:
        """The process is gone; what it said and was not read yet may still come before its end is noticed."""
        name = self.rng.choice(self.sequences).admit.placement.engine_id
        self.boots[name] += 1
        for sequence in self.sequences[:]:
            if sequence.admit.placement.engine_id == name:
                self.sequences.remove(sequence)
                self.cut(sequence)

    def freeze(self) -> None:
        """The gateway thinks it dead, moves its sequences and hears stale steps when it thaws."""
        sequence = self.rng.choice(self.sequences)
        if not sequence.is_cut:
            sequence.is_cut = True
            self.cut(sequence)
            if self.rng.random() < 0.5:
                self.say(partial(thaw, sequence.admit.choice, sequence.admit.attempt.gateway))

    def cut(self, sequence: Sequence) -> None:
        choice, attempt = sequence.admit.choice, sequence.admit.attempt.gateway
        self.say(lambda life, now: life.run_broken(choice, attempt, now))

    def return_one(self) -> None:
        sequence = self.rng.choice(self.sequences)
        self.sequences.remove(sequence)
        choice, attempt = sequence.admit.choice, sequence.admit.attempt.gateway
        cause = self.rng.choice(list(ReturnCause))
        self.say(lambda life, now: life.returned(choice, attempt, cause, COUNTS, now))


@dataclass
class CallerView:
    """What a caller has received."""

    ids: list[list[int]]
    text: list[str]
    next_seq_id: int = 0

    def take(self, outbox: Outbox) -> bool:
        tokens = outbox.take()
        if tokens is None:
            return False
        assert outbox.number() == self.next_seq_id
        self.next_seq_id += 1
        assert tokens.first_index == len(self.ids[tokens.choice])
        self.ids[tokens.choice] += tokens.ids
        self.text[tokens.choice] += tokens.text
        return True


def thaw(choice: int, attempt: int, life: RequestLife, now: float) -> list[Command]:
    life.engine_is_back(choice, attempt)
    return life.tick(now)


def new_texts(spec: RequestSpec) -> list[OutputText]:
    rules = OutputRules(spec.max_tokens, stop_ids=frozenset({STOP_ID}), stop_texts=("xa",))
    return [OutputText(TABLE, PROMPT, rules) for _ in spec.known_output_ids]


def undisturbed(choice: int, max_tokens: int) -> tuple[list[int], str]:
    spec = RequestSpec(0, len(PROMPT), max_tokens, ((),))
    ids = [drawn(choice, index) for index in range(max_tokens)]
    delta = new_texts(spec)[0].push(ids)
    return ids[: delta.num_accepted], delta.text


def run_schedule(seed: int) -> tuple[str, int]:
    """Runs one request to its end; returns how it ended and the stale ids that were sent to it."""
    rng = random.Random(seed)
    num_choices, max_tokens = rng.choice([1, 1, 2, 3]), rng.choice([1, 5, 20, 40])
    view = CallerView([[] for _ in range(num_choices)], [""] * num_choices)
    spec = RequestSpec(0, len(PROMPT), max_tokens, ((),) * num_choices)
    num_stale_sent = 0
    while True:
        outbox = Outbox(view.next_seq_id)
        life = RequestLife(spec, new_texts(spec), HopClock(0.0), lambda: 0.0, rng.random)
        world = World(rng, life, outbox, max_tokens, num_choices)
        world.carry_out(life.start(0.0))
        is_cut = run_until_end(world, view, rng)
        num_stale_sent += world.num_stale_sent
        if not is_cut:
            break
        known = tuple(tuple(ids) for ids in view.ids)
        spec = replace(spec, client_attempt=spec.client_attempt + 1, known_output_ids=known)
    (end,) = world.ends
    for choice in range(num_choices):
        ids, text = undisturbed(choice, max_tokens)
        if isinstance(end, Complete):
            assert (view.ids[choice], view.text[choice]) == (ids, text), seed
            assert end.choices[choice].num_tokens == len(ids)
        else:
            assert view.ids[choice] == ids[: len(view.ids[choice])]
    assert isinstance(end, Complete) or end.error.reason is Reason.CRASH_LIMIT, end
    return type(end).__name__, num_stale_sent


def run_until_end(world: World, view: CallerView, rng: random.Random) -> bool:
    """True if the caller's gateway died before the end: what it had not delivered is lost."""
    may_die = rng.random() < 0.2
    for _ in range(5000):
        if world.ends:
            break
        if may_die and rng.random() < 0.01:
            return True
        world.act()
        if rng.random() < 0.5:
            view.take(world.outbox)
    assert world.ends, "no end"
    while view.take(world.outbox):
        pass
    while world.messages:
        world.deliver()
    assert len(world.ends) == 1
    return False


def test_every_schedule_ends_once_with_the_undisturbed_answer() -> None:
    ends: Counter[str] = Counter()
    num_stale_sent = 0
    for seed in range(NUM_SEEDS):
        end, num_stale = run_schedule(seed)
        ends[end] += 1
        num_stale_sent += num_stale
    assert ends["Complete"] > 0.8 * NUM_SEEDS and num_stale_sent > NUM_SEEDS, (ends, num_stale_sent)
