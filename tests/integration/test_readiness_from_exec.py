"""Probes from the moment of exec: nobody sees SERVING before the first id is drawn or the preheat is done."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.v1 import gateway_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.supervisor.ports import free_ports

START_S = 60.0
SERVING = "SERVING"


class Started:
    """A process whose log is read while it is probed."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command, f"--listen={self.address}", "--metrics-listen="],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(line.rstrip() for line in self.process.stderr)

    def says(self, word: str) -> bool:
        return any(line.startswith(word) for line in list(self.log))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def started(*command: str, **environment: str) -> Iterator[Started]:
    process = Started(*command, **environment)
    try:
        yield process
    finally:
        process.end()


async def status(address: str, name: str) -> str:
    """What a prober without memory sees: a state, or the code of the failure."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def probe(target: Started, name: str) -> list[str]:
    """Every state from exec to the first SERVING, or to the process's end."""
    seen: list[str] = []
    deadline_s = time.monotonic() + START_S
    while not (seen and seen[-1] == SERVING) and target.process.poll() is None:
        assert time.monotonic() < deadline_s, (seen[-5:], target.log)
        seen.append(await status(target.address, name))
        await asyncio.sleep(0.02)
    return seen


@pytest.mark.parametrize("name", ["", "pagemesh.v1.EngineService", "model/smollm2"])
async def test_an_engine_serves_once_an_id_was_drawn(tmp_path: Path, name: str) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"vocab_size": 97}))
    command = ("tests.support.odd_engine", "--executor=scripted", f"--script={script}")
    with started(*command, ODD_ENGINE="slow") as engine:
        seen = await probe(engine, name)
        assert engine.says("DRAWN 1"), engine.log
        assert seen[-1] == SERVING and "NOT_SERVING" in seen, seen
        assert set(seen) <= {"UNAVAILABLE", "NOT_SERVING", SERVING}


async def test_an_engine_that_cannot_draw_never_serves(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"vocab_size": 97}))
    command = ("tests.support.odd_engine", "--executor=scripted", f"--script={script}")
    with started(*command, ODD_ENGINE="stillborn") as engine:
        seen = await probe(engine, "")
        assert engine.process.wait(10) == 1
        assert SERVING not in seen and "NOT_SERVING" in seen, seen
        assert not engine.says("READY")


async def test_a_tokenizer_serves_once_every_hot_query_is_cached(tmp_path: Path) -> None:
    queries = [f"What is the number {number} good for?" for number in range(2000)]
    (tmp_path / "hot.txt").write_text("\n".join(queries))
    with started("services.tokenizer", f"--hot-queries={tmp_path / 'hot.txt'}") as tokenizer:
        seen = await probe(tokenizer, "")
        assert seen[-1] == SERVING and set(seen) <= {"UNAVAILABLE", "NOT_SERVING", SERVING}, seen
        segment = gateway_pb2.Segment(role=gateway_pb2.ROLE_USER, content=queries[-1])
        request = tokenizer_pb2.EncodeRequest(conversation=gateway_pb2.Conversation(segments=[segment]))
        async with grpc.aio.insecure_channel(tokenizer.address) as channel:
            answer = await tokenizer_pb2_grpc.TokenizerServiceStub(channel).Encode(request)
        assert answer.num_cached == len(answer.ids) > 0
