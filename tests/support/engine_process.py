"""One engine process with the scripted executor, and a gateway's and a scheduler's end of its streams."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.stream import MessageStream

START_S = 60.0
WAIT_S = 10.0


class EngineProcess:
    """async with EngineProcess({"scripts": [...]}, max_sequences=2) as engine: ..."""

    def __init__(
        self,
        script: dict[str, Any] | None = None,
        *,
        module: str = "services.engine",
        environment: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self._module = module
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix="engine-")
        self.script_path = Path(self._folder.name) / "script.json"
        self.write_script(script or {})
        self._settings = {
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "executor": "scripted",
            "script": self.script_path,
            "drain_s": 5,
            **settings,
        }
        self.log: list[str] = []
        self.address = ""

    def write_script(self, script: dict[str, Any]) -> None:
        self.script_path.write_text(json.dumps({"vocab_size": 97, **script}))

    async def __aenter__(self) -> Self:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            *flags,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self._environment},
        )
        self._ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read())
        async with asyncio.timeout(START_S):
            await self._ready.wait()
        assert self.address, self.log
        self.channel = grpc.aio.insecure_channel(self.address)
        self.stub = engine_pb2_grpc.EngineServiceStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader
        self._folder.cleanup()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def info(self) -> engine_pb2.GetEngineInfoResponse:
        return await self.stub.GetEngineInfo(engine_pb2.GetEngineInfoRequest(), timeout=WAIT_S)

    async def wait_idle(self) -> float:
        """Seconds until nothing is running or waiting."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        async with asyncio.timeout(WAIT_S):
            while True:
                info = await self.info()
                if info.num_running == info.num_waiting == 0:
                    return loop.time() - started_s
                await asyncio.sleep(0.01)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode().rstrip()
            self.log.append(text)
            if text.startswith("READY"):
                self.address = text.split()[-1]
                self._ready.set()
        self._ready.set()

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator["GatewayEnd"]:
        call = self.stub.Run()
        hello = engine_pb2.RunRequest(hello=engine_pb2.RunHello(gateway_id="g", boot_id="g"))
        stream: MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse]
        stream = MessageStream.over_call(call, heartbeat=engine_pb2.RunRequest(), hello=hello)
        async with stream:
            first = await anext(aiter(stream))
            assert first.HasField("hello"), first
            end = GatewayEnd(stream, first.hello)
            reader = asyncio.create_task(end.read())
            try:
                yield end
            finally:
                reader.cancel()

    @asynccontextmanager
    async def scheduler(self, boot_id: str) -> AsyncIterator["SchedulerEnd"]:
        call = self.stub.Watch()
        hello = engine_pb2.WatchRequest(hello=engine_pb2.WatchHello(scheduler_id=boot_id, boot_id=boot_id))
        stream: MessageStream[engine_pb2.WatchRequest, engine_pb2.WatchResponse]
        stream = MessageStream.over_call(call, heartbeat=engine_pb2.WatchRequest(), hello=hello)
        async with stream:
            first = await anext(aiter(stream))
            assert first.HasField("hello"), first
            end = SchedulerEnd(stream)
            reader = asyncio.create_task(end.read())
            try:
                yield end
            finally:
                reader.cancel()


@dataclass
class Heard:
    """All that was said of one handle."""

    ids: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    progress: engine_pb2.Progress | None = None
    ended: engine_pb2.Ended | None = None
    returned: engine_pb2.Returned | None = None
    refused: engine_pb2.AdmitRefused | None = None

    @property
    def is_over(self) -> bool:
        return not (self.ended is None and self.returned is None and self.refused is None)


class GatewayEnd:
    """A gateway's end of Run: `admit`, then `wait` for the end."""

    def __init__(self, stream: Any, info: engine_pb2.EngineInfo) -> None:
        self.stream = stream
        self.info = info
        self.heard: dict[int, Heard] = {}
        self.messages: list[engine_pb2.RunResponse] = []
        self._changed = asyncio.Event()
        self._next_handle = 1

    def admit(self, ids: list[int], max_output_tokens: int = 8, **fields: Any) -> int:
        """Returns the handle."""
        handle, request = self.words(ids, max_output_tokens, **fields)
        self.stream.send(engine_pb2.RunRequest(admit=[request]))
        return handle

    def words(
        self, ids: list[int], max_output_tokens: int = 8, **fields: Any
    ) -> tuple[int, engine_pb2.Admit]:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self.heard[handle] = Heard()
        admit = engine_pb2.Admit(
            handle=handle,
            identity=engine_pb2.Identity(tenant_key=b"t" * 16, request_id=f"r{id(self)}-{handle}"),
            attempt=engine_pb2.Attempt(client_attempt=1, gateway_attempt=1),
            ids=ids,
            num_prompt_tokens=len(ids),
            max_output_tokens=max_output_tokens,
        )
        admit.sampling.temperature = 0
        for name, value in fields.items():
            current = getattr(admit, name)
            if hasattr(current, "CopyFrom"):
                admit.ClearField(name)
                getattr(admit, name).CopyFrom(value)
            elif hasattr(current, "extend"):
                del current[:]
                current.extend(value)
            else:
                setattr(admit, name, value)
        return handle, admit

    def cancel(self, handle: int) -> None:
        self.stream.send(engine_pb2.RunRequest(cancel=[engine_pb2.Cancel(handle=handle)]))

    async def wait(self, handle: int) -> Heard:
        """Until its one end."""
        return await self.until(handle, lambda heard: heard.is_over)

    async def until(self, handle: int, holds: Callable[[Heard], bool]) -> Heard:
        async with asyncio.timeout(WAIT_S):
            while not holds(self.heard[handle]):
                self._changed.clear()
                await self._changed.wait()
        return self.heard[handle]

    async def read(self) -> None:
        async for message in self.stream:
            self.messages.append(message)
            self._take(message)
            self._changed.set()

    def _take(self, message: engine_pb2.RunResponse) -> None:
        for refused in message.refused:
            self.heard[refused.handle].refused = refused
        for progress in message.progress:
            self.heard[progress.handle].progress = progress
        self._take_step(message.step)
        for returned in message.returned:
            self.heard[returned.handle].returned = returned
        for ended in message.ended:
            self.heard[ended.handle].ended = ended

    def _take_step(self, step: engine_pb2.Step) -> None:
        ids, counts = iter(step.ids), iter(step.num_logprobs)
        entries = iter(zip(step.logprob_ids, step.logprobs, strict=True))
        rows = zip(step.handles, step.first_output_indexes, step.num_ids, strict=True)
        for handle, first_index, num_ids in rows:
            heard = self.heard[handle]
            assert not heard.is_over, heard
            for offset in range(num_ids):
                heard.ids.append(next(ids))
                heard.indexes.append(first_index + offset)
                heard.logprobs.append([next(entries) for _ in range(next(counts, 0))])


class SchedulerEnd:
    """A scheduler's end of Watch."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.reports: list[engine_pb2.EngineReport] = []
        self._changed = asyncio.Event()

    @property
    def tickets(self) -> list[tuple[int, int]]:
        return [(news.number, news.outcome) for report in self.reports for news in report.tickets]

    def room(self, priority: int = 2) -> tuple[int, int]:
        """Sequences and tokens of a class, as last reported."""
        rooms = {room.priority: room for room in self.reports[-1].room}
        return rooms[priority].num_sequences, rooms[priority].num_tokens

    def say_waiting(self, num_sequences: int, priority: int = 2) -> None:
        work = engine_pb2.WaitingWork(priority=priority, num_sequences=num_sequences)
        self.stream.send(engine_pb2.WatchRequest(waiting=[work], has_waiting=True))

    async def until(self, holds: Callable[["SchedulerEnd"], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not (self.reports and holds(self)):
                self._changed.clear()
                await self._changed.wait()

    async def read(self) -> None:
        async for message in self.stream:
            if message.HasField("report"):
                self.reports.append(message.report)
                self._changed.set()
