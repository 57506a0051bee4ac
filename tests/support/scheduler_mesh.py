"""A placement core with a clock that tests turn, and short words for its events."""

from collections.abc import Iterable, Mapping
from typing import Any

from services.contract.priority import Priority
from services.scheduler.core.commands import Command, Placed, Refused
from services.scheduler.core.credit import Room
from services.scheduler.core.engines import EngineFacts, EngineReport
from services.scheduler.core.limits import Limits
from services.scheduler.core.placement import PlacementCore
from services.scheduler.core.request import Refusal, Request

MODEL = "smollm2"
TENANT = b"tenant-a".ljust(16, b"\0")


def request(handle: int, **fields: Any) -> Request:
    """A request of 100 known ids, interactive, unless said otherwise."""
    words: dict[str, Any] = {
        "model": MODEL,
        "tenant_key": TENANT,
        "priority": Priority.INTERACTIVE,
        "num_prompt_tokens": 100,
        "max_output_tokens": 50,
    }
    return Request(handle=handle, **{**words, **fields})


def tenant(name: str) -> bytes:
    """A tenant's key."""
    return name.encode().ljust(16, b"\0")


def facts(name: str, boot: str = "", **fields: Any) -> EngineFacts:
    """An engine of 8 sequences and 8,192 ids."""
    words: dict[str, Any] = {
        "engine_id": name,
        "boot_id": boot or f"{name}-boot",
        "address": f"{name}:7630",
        "model": MODEL,
        "max_model_len": 8192,
        "max_pool_tokens": 8192,
        "max_sequences": 8,
        "vocab_size": 1000,
        "revision": "r1",
    }
    return EngineFacts(**{**words, **fields})


class Mesh:
    """One core; every event returns its commands and adds them to `log`."""

    def __init__(self, limits: Limits, jitter: float = 0.5) -> None:
        self.now = 1000.0
        self.core = PlacementCore(limits, lambda: jitter)
        self.stream = self.core.open_stream()
        self.log: list[Command] = []

    def note(self, commands: list[Command]) -> list[Command]:
        self.log += commands
        return commands

    def enqueue(self, *requests: Request, stream: int | None = None) -> list[Command]:
        return self.note(self.core.enqueue(self.stream if stream is None else stream, requests, self.now))

    def withdraw(self, handle: int) -> list[Command]:
        return self.note(self.core.withdraw(self.stream, handle, self.now))

    def reach(self, name: str, is_up: bool, boot: str = "", stream: int | None = None) -> list[Command]:
        stream_id = self.stream if stream is None else stream
        boot_id = boot or f"{name}-boot"
        return self.note(self.core.reach(stream_id, name, boot_id, is_up, self.now))

    def hello(self, name: str, boot: str = "", **fields: Any) -> list[Command]:
        return self.note(self.core.engine_hello(facts(name, boot, **fields), self.now))

    def report(
        self,
        name: str,
        sequences: int | Mapping[Priority, int] = 8,
        tokens: int = 8192,
        boot: str = "",
        **fields: Any,
    ) -> list[Command]:
        by_class = dict.fromkeys(Priority, sequences) if isinstance(sequences, int) else sequences
        room = {priority: Room(count, tokens) for priority, count in by_class.items()}
        report = EngineReport(room=room, **fields)
        return self.note(self.core.engine_report(boot or f"{name}-boot", report, self.now))

    def engine(self, name: str, sequences: int | Mapping[Priority, int] = 8, **fields: Any) -> None:
        """An engine that said hello and reported its room."""
        self.hello(name, **fields)
        self.report(name, sequences, num_running=1)

    def down(self, name: str, boot: str = "") -> list[Command]:
        return self.note(self.core.engine_down(boot or f"{name}-boot", self.now))

    def after(self, seconds: float) -> list[Command]:
        """Lets time pass; ticks at every moment the core asked for."""
        until, commands = self.now + seconds, list[Command]()
        while (due := self.core.next_due()) is not None and due <= until:
            self.now = max(due, self.now)
            commands += self.note(self.core.tick(self.now))
        self.now = until
        return commands + self.note(self.core.tick(self.now))

    def waiting(self) -> int:
        """Waiting sequences of all classes."""
        return sum(self.core.waiting(priority)[0] for priority in Priority)


def placed(commands: Iterable[Command]) -> list[Placed]:
    """The placements among them."""
    return [command for command in commands if isinstance(command, Placed)]


def handles(commands: Iterable[Command]) -> list[int]:
    """Handles that were placed, in order."""
    return [command.request.handle for command in placed(commands)]


def refusals(commands: Iterable[Command]) -> dict[int, Refusal]:
    """Handle -> why it was refused."""
    return {each.request.handle: each.refusal for each in commands if isinstance(each, Refused)}
