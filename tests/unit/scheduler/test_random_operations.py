"""Random operations against a second account of credit: each enqueue ends once, no credit is overdrawn."""

import random
from collections import Counter

import pytest

from services.contract.priority import Priority
from services.scheduler.core.commands import Command, Placed, Refused, TicketGivenUp, Withdrawn
from services.scheduler.core.credit import Room
from services.scheduler.core.engines import EngineReport
from services.scheduler.core.limits import Limits
from services.scheduler.core.placement import PlacementCore
from services.scheduler.core.request import Request
from tests.support.scheduler_mesh import facts, request, tenant

NUM_OPERATIONS = 1200


class Account:
    """What a gateway and the engines would believe, kept apart from the core."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()
        self.ends: Counter[str] = Counter()
        self.room: dict[str, dict[Priority, Room]] = {}
        self.unnamed: dict[str, dict[int, Placed]] = {}
        self.unreachable: set[tuple[int, str]] = set()

    def spent(self, boot_id: str, priority: Priority) -> int:
        return sum(each.request.priority <= priority for each in self.unnamed[boot_id].values())

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Placed():
                    self._end(command, "placed")
                    self._check_place(command)
                case Refused():
                    self._end(command, "refused")
                case Withdrawn():
                    self._end(command, "withdrawn")
                case TicketGivenUp():
                    for tickets in self.unnamed.values():
                        tickets.pop(command.number, None)

    def _end(self, command: Placed | Refused | Withdrawn, how: str) -> None:
        self.open.remove((command.stream_id, command.request.handle))
        self.ends[how] += 1

    def _check_place(self, placed: Placed) -> None:
        boot_id, priority = placed.engine.boot_id, placed.request.priority
        assert boot_id in self.room, "not on a dead engine"
        assert len(placed.tickets) == placed.request.num_sequences
        assert (placed.stream_id, boot_id) not in self.unreachable
        for ticket in placed.tickets:
            assert ticket.engine_boot_id == boot_id
            self.unnamed[boot_id][ticket.number] = placed
        room = self.room[boot_id].get(priority, Room(0, 0))
        assert self.spent(boot_id, priority) <= room.num_sequences


class Walk:
    """One seeded walk."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        limits = Limits(max_queued_sequences=60, max_queued_tokens=100_000, no_engine_wait_s=3.0)
        self.core = PlacementCore(limits, self.rng.random)
        self.streams = [self.core.open_stream() for _ in range(3)]
        self.account = Account()
        self.up: dict[str, str] = {}
        """Boot id -> engine id."""
        self.last_handle = self.last_boot = 0

    def run(self) -> None:
        operations = [
            (self.enqueue, 40),
            (self.report, 40),
            (self.withdraw, 8),
            (self.wait, 20),
            (self.hello, 3),
            (self.down, 2),
            (self.reach, 4),
            (self.reopen, 1),
        ]
        verbs, weights = zip(*operations, strict=True)
        for verb in self.rng.choices(verbs, weights, k=NUM_OPERATIONS):
            verb()
            self.check()
        self.finish()

    def enqueue(self) -> None:
        requests = [self._request() for _ in range(self.rng.choice((1, 1, 1, 3, 10)))]
        stream_id = self.rng.choice(self.streams)
        self.account.open |= {(stream_id, each.handle) for each in requests}
        self.take(self.core.enqueue(stream_id, requests, self.now))

    def report(self) -> None:
        if not self.up:
            return
        boot_id = self.rng.choice(list(self.up))
        counts = sorted((self.rng.randint(0, 8) for _ in Priority), reverse=True)
        room = {
            each: Room(count, self.rng.choice((0, 500, 8192)))
            for each, count in zip(Priority, counts, strict=True)
        }
        tickets = list(self.account.unnamed[boot_id])
        named = self.rng.sample(tickets, self.rng.randint(0, len(tickets)))
        outcomes: dict[str, tuple[int, ...]] = {"admitted": (), "refused": (), "ended": ()}
        for number in named:
            outcome = self.rng.choice(tuple(outcomes))
            outcomes[outcome] += (number,)
            del self.account.unnamed[boot_id][number]
        self.account.room[boot_id] = room
        report = EngineReport(room, **outcomes, num_running=self.rng.randint(0, 3))
        self.take(self.core.engine_report(boot_id, report, self.now))

    def withdraw(self) -> None:
        placed = [
            (each.stream_id, each.request.handle)
            for tickets in self.account.unnamed.values()
            for each in tickets.values()
        ]
        known = [
            each
            for each in (*self.account.open, *placed, (self.streams[0], 10**9))
            if each[0] in self.streams
        ]
        stream_id, handle = self.rng.choice(sorted(known))
        for tickets in self.account.unnamed.values():
            for number, each in tuple(tickets.items()):
                if (each.stream_id, each.request.handle) == (stream_id, handle):
                    del tickets[number]
        self.take(self.core.withdraw(stream_id, handle, self.now))
        assert (stream_id, handle) not in self.account.open

    def wait(self) -> None:
        self.now += self.rng.choice((0.001, 0.02, 0.3, 1.0))
        self.take(self.core.tick(self.now))

    def hello(self) -> None:
        if len(self.up) < 4:
            self.last_boot += 1
            boot_id, engine_id = f"boot-{self.last_boot}", f"e{self.last_boot % 5}"
            if engine_id not in self.up.values():
                self.up[boot_id] = engine_id
                self.account.room[boot_id] = {}
                self.account.unnamed[boot_id] = {}
                size = self.rng.choice((4, 8))
                self.take(self.core.engine_hello(facts(engine_id, boot_id, max_sequences=size), self.now))

    def down(self) -> None:
        if self.up:
            boot_id = self.rng.choice(list(self.up))
            del self.up[boot_id], self.account.room[boot_id]
            self.take(self.core.engine_down(boot_id, self.now))

    def reach(self) -> None:
        if self.up:
            stream_id, boot_id = self.rng.choice(self.streams), self.rng.choice(list(self.up))
            is_up = self.rng.random() < 0.6
            change = self.account.unreachable.discard if is_up else self.account.unreachable.add
            change((stream_id, boot_id))
            self.take(self.core.reach(stream_id, self.up[boot_id], boot_id, is_up, self.now))

    def reopen(self) -> None:
        stream_id = self.streams.pop(self.rng.randrange(len(self.streams)))
        self.take(self.core.close_stream(stream_id, self.now))
        assert not any(each[0] == stream_id for each in self.account.open)
        self.streams.append(self.core.open_stream())

    def take(self, commands: list[Command]) -> None:
        self.account.take(commands)

    def check(self) -> None:
        for engine in self.core.engines():
            boot_id = engine.facts.boot_id
            assert engine.credit.num_unnamed == len(self.account.unnamed[boot_id])
            for priority in Priority:
                usable, spent = (
                    engine.credit.usable_sequences(priority),
                    self.account.spent(boot_id, priority),
                )
                room = self.account.room.get(boot_id, {}).get(priority, Room(0, 0)).num_sequences
                assert 0 <= usable <= max(room - spent, 0), (boot_id, priority)
        waiting = sum(self.core.waiting(priority)[0] for priority in Priority)
        assert (waiting == 0) == (not self.account.open)

    def finish(self) -> None:
        self.take(self.core.drain(self.now))
        assert not self.account.open
        for boot_id in tuple(self.up):
            self.take(self.core.engine_down(boot_id, self.now))
        self.now += 10.0
        self.take(self.core.tick(self.now))
        assert [self.core.waiting(priority) for priority in Priority] == [(0, 0)] * 3
        assert not list(self.core.engines())
        self.take(self.core.tick(self.now + 1))
        assert self.core.next_due() is None

    def _request(self) -> Request:
        self.last_handle += 1
        rng = self.rng
        return request(
            self.last_handle,
            tenant_key=tenant(rng.choice("abc")),
            priority=rng.choice(list(Priority)),
            num_prompt_tokens=rng.choice((1, 16, 17, 300, 3000, 8150, 9000)),
            num_sequences=rng.choice((1, 1, 1, 2, 5, 9)),
            age_s=rng.random() * 10,
            time_left_s=rng.choice((None, 0.5, 5.0)),
            queue_time_left_s=rng.choice((None, 0.01, 1.0)),
            was_admitted=rng.random() < 0.1,
            was_accepted=rng.random() < 0.1,
            num_crashes=rng.randint(0, 2),
            avoid_engine_ids=frozenset(rng.sample(["e0", "e1", "e2"], rng.choice((0, 0, 1, 3)))),
            preferred_engine_id=rng.choice(("", "", "e1")),
            preferred_fingerprint=rng.choice(("", "", "f")),
        )


@pytest.mark.parametrize("seed", range(6))
def test_every_enqueue_ends_once_and_credit_is_never_overdrawn(seed: int) -> None:
    walk = Walk(seed)
    walk.run()
    assert min(walk.account.ends[how] for how in ("placed", "refused", "withdrawn")) > 30, walk.account.ends
