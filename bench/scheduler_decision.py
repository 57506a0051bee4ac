"""Prints what a placement decision costs with 10,000 requests queued: `python -m bench.scheduler_decision`.

A decision is timed inside the core, without messages, in CPU time: an arrival that must queue, one that
is placed at once, the placing of the next queued request when an engine reports room, alone and 32 at a time.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterable

from services.contract.priority import Priority
from services.scheduler.core.commands import Command, Placed
from services.scheduler.core.credit import Room
from services.scheduler.core.engines import EngineFacts, EngineReport
from services.scheduler.core.limits import Limits
from services.scheduler.core.placement import PlacementCore
from services.scheduler.core.request import Request

MODEL = "smollm2"
NUM_TENANTS = 100
QUEUED = (Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BATCH)


class World:
    """A core with full engines and a queue."""

    def __init__(self, num_engines: int, num_queued: int) -> None:
        self.rng = random.Random(1)
        self.core = PlacementCore(Limits(max_queued_sequences=10 * num_queued), self.rng.random)
        self.stream = self.core.open_stream()
        self.now = 0.0
        self.last_handle = 0
        self.boots = [f"boot-{index}" for index in range(num_engines)]
        for boot_id in self.boots:
            self.core.engine_hello(_facts(boot_id), self.now)
            self.report(boot_id, 0, ())
        while sum(self.core.waiting(each)[0] for each in Priority) < num_queued:
            self.core.enqueue(self.stream, [self.request()], self.now)
            self.now += 1e-5

    def request(self, priority: Priority | None = None) -> Request:
        self.last_handle += 1
        return Request(
            handle=self.last_handle,
            model=MODEL,
            tenant_key=self.rng.randrange(NUM_TENANTS).to_bytes(16, "little"),
            priority=priority or self.rng.choice(QUEUED),
            num_prompt_tokens=self.rng.randint(16, 2000),
            max_output_tokens=200,
            time_left_s=600.0,
        )

    def report(self, boot_id: str, room: int, admitted: tuple[int, ...]) -> list[Command]:
        return self.core.engine_report(boot_id, _report(room, admitted), self.now)


def _report(room: int, admitted: tuple[int, ...]) -> EngineReport:
    return EngineReport({each: Room(room, 500_000) for each in Priority}, admitted, num_running=256 - room)


def _facts(boot_id: str) -> EngineFacts:
    return EngineFacts(
        engine_id=boot_id.replace("boot", "engine"),
        boot_id=boot_id,
        address="127.0.0.1:7630",
        model=MODEL,
        max_model_len=8192,
        max_pool_tokens=1_000_000,
        max_sequences=256,
    )


def tickets(commands: Iterable[Command]) -> tuple[int, ...]:
    """Numbers of the tickets given."""
    placed = (each for each in commands if isinstance(each, Placed))
    return tuple(ticket.number for each in placed for ticket in each.tickets)


def timed(action: Callable[[], list[Command]]) -> tuple[float, list[Command]]:
    """Microseconds of this thread and outcome: other work on the machine does not count."""
    started = time.thread_time()
    commands = action()
    return (time.thread_time() - started) * 1e6, commands


def queued_arrivals(world: World, count: int) -> list[float]:
    """Arrivals while no engine has room; each is withdrawn again, so that the queue keeps its length."""
    times = []
    for _ in range(count):
        request = world.request()
        times.append(timed(lambda: world.core.enqueue(world.stream, [request], world.now))[0])  # noqa: B023
        world.core.withdraw(world.stream, request.handle, world.now)
    return times


def placed_arrivals(world: World, count: int) -> list[float]:
    """Arrivals of a class for which every engine has room, while lower classes wait."""
    times = []
    for boot_id in world.boots:
        room = {each: Room(64 if each is Priority.REALTIME else 0, 500_000) for each in Priority}
        world.core.engine_report(boot_id, EngineReport(room, num_running=192), world.now)
    for _ in range(count):
        request = world.request(Priority.REALTIME)
        took_us, commands = timed(lambda: world.core.enqueue(world.stream, [request], world.now))  # noqa: B023
        assert tickets(commands), commands
        times.append(took_us)
        world.core.withdraw(world.stream, request.handle, world.now)
    return times


def dispatches(world: World, count: int) -> list[float]:
    """Reports of room for one: the next queued request is placed; another takes its place in the queue."""
    times: list[float] = []
    unnamed: dict[str, tuple[int, ...]] = dict.fromkeys(world.boots, ())
    for index in range(count):
        boot_id = world.boots[index % len(world.boots)]
        report = _report(1, unnamed[boot_id])
        took_us, commands = timed(lambda: world.core.engine_report(boot_id, report, world.now))  # noqa: B023
        unnamed[boot_id] = tickets(commands)
        assert len(unnamed[boot_id]) == 1, commands
        times.append(took_us)
        world.report(boot_id, 0, unnamed[boot_id])
        world.core.enqueue(world.stream, [world.request()], world.now)
        world.now += 1e-4
    return times


def batch_dispatches(world: World, count: int) -> list[float]:
    """Reports of room for 32, per request placed."""
    times = []
    for index in range(count // 32):
        boot_id = world.boots[index % len(world.boots)]
        report = _report(32, ())
        took_us, commands = timed(lambda: world.core.engine_report(boot_id, report, world.now))  # noqa: B023
        given = tickets(commands)
        times += [took_us / len(given)] * len(given)
        world.report(boot_id, 0, given)
        world.core.enqueue(world.stream, [world.request() for _ in given], world.now)
        world.now += 1e-3
    return times


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=10_000, help="requests in the queue")
    parser.add_argument("--decisions", type=int, default=5_000, help="decisions per figure")
    arguments = parser.parse_args()
    print(f"{arguments.queued} queued, {NUM_TENANTS} tenants, microseconds per decision")
    print(f"{'engines':>8}  {'decision':<18} {'p50':>7} {'p99':>7}")
    for num_engines in (1, 10, 100):
        for measure in (queued_arrivals, placed_arrivals, dispatches, batch_dispatches):
            times = measure(World(num_engines, arguments.queued), arguments.decisions)
            cuts = statistics.quantiles(times, n=100)
            name = measure.__name__.replace("_", " ")
            print(f"{num_engines:>8}  {name:<18} {cuts[49]:>7.1f} {cuts[98]:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
