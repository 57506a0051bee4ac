"""What the mesh costs beside its engine: `python -m bench.mesh_cost [--streams 32] [--json]`.

CPU time per token of gateway, scheduler and the engine's threads other than the compute thread, in real
processes with the scripted executor in a realistic rhythm; and the time to first token that the mesh adds at
one stream. Beside them what nobody can save: the engine's loop in process, with the same executor, and a bare
gRPC server that writes as many messages (`bench.bare_stream`). CPU times are the threads' own, so a
loaded machine changes them less than the clock's.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import grpc

from bench.engine_in_process import EngineInProcess, engine_in_process
from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc
from services.engine.step_runner import COMPUTE_THREAD
from tests.support.mesh import Mesh

SHORT, LONG = 64, 400
"""Output tokens: short streams carry what a request costs, long ones show the tokens alone."""
PROMPT_TOKENS = 100
TEXT = "Write two sentences about the sea at night, the moon and a small boat that is far from its harbour."
NUM_WARM = 5
"""First tokens in front that do not count."""
COMPUTE = "engine compute thread"

Stub: TypeAlias = "gateway_pb2_grpc.GatewayServiceAsyncStub"
Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=20.0, help="what a step takes")
    parser.add_argument("--firsts", type=int, default=100, help="first tokens that are timed, each way")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.streams, arguments.rounds, arguments.step_ms, arguments.firsts))
    if arguments.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:>40} {value:10.2f}")


async def measure(num_streams: int, num_rounds: int, step_ms: float, num_firsts: int) -> Row:
    """Medians over rounds, after a first that only warms up."""
    output_ids = [1000 + 7 * i % 20_000 for i in range(LONG)]
    script = {"scripts": [{"output_ids": output_ids, "step_ms": step_ms}]}
    settings = {"engine": {"max_sequences": num_streams}}
    async with (
        Mesh(engines=1, script=script, settings=settings, niceness=10) as mesh,
        grpc.aio.insecure_channel(mesh.gateways[0]) as channel,
        engine_in_process(script, num_streams) as engine,
        bare_server(step_ms) as bare,
    ):
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        rows = [
            {
                **await one_round(mesh, stub, num_streams),
                **await engine_round(engine, num_streams),
                **await bare_round(bare, num_streams),
            }
            for _ in range(num_rounds + 1)
        ][1:]
        result = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        return result | await first_tokens(stub, engine, num_firsts)


async def one_round(mesh: Mesh, stub: "Stub", num_streams: int) -> Row:
    """CPU microseconds per token of each part, at both lengths."""
    costs: Row = {}
    for num_tokens, num_requests in ((SHORT, LONG // SHORT), (LONG, 1)):
        before = cpu_times_us(mesh)
        streams = [_streams(stub, number, num_tokens, num_requests) for number in range(num_streams)]
        await asyncio.gather(*streams)
        num_streamed = num_streams * num_tokens * num_requests
        spent = {name: (us - before[name]) / num_streamed for name, us in cpu_times_us(mesh).items()}
        costs |= {f"{name}, us/token at {num_tokens} tokens": us for name, us in spent.items()}
        costs[f"mesh, us/token at {num_tokens} tokens"] = sum(spent.values()) - spent[COMPUTE]
    return costs


async def engine_round(engine: EngineInProcess, num_streams: int) -> Row:
    """CPU microseconds per token of the engine's loop without gRPC, in this thread."""
    before_s = time.thread_time()
    await asyncio.gather(*(engine.run(_prompt(number), LONG) for number in range(num_streams)))
    us_per_token = (time.thread_time() - before_s) / (num_streams * LONG) * 1e6
    return {f"engine loop in process, us/token at {LONG} tokens": us_per_token}


async def bare_round(bare: tuple[int, "Stub"], num_streams: int) -> Row:
    """CPU microseconds per message of a server that does nothing but write."""
    pid, stub = bare
    before_us = sum(us for _, us in thread_times_us(pid))
    await asyncio.gather(*(_streams(stub, number, LONG, 1) for number in range(num_streams)))
    spent_us = sum(us for _, us in thread_times_us(pid)) - before_us
    return {f"bare gRPC server, us/token at {LONG} tokens": spent_us / (num_streams * LONG)}


@asynccontextmanager
async def bare_server(step_ms: float) -> AsyncIterator[tuple[int, "Stub"]]:
    """Its process id and a stub."""
    command = [sys.executable, "-m", "bench.bare_stream", str(step_ms), str(LONG)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process.pid, gateway_pb2_grpc.GatewayServiceStub(channel)
    finally:
        process.kill()
        await process.wait()


async def _streams(stub: "Stub", number: int, num_tokens: int, num_requests: int) -> None:
    """One caller's requests, one after the other, each to its end."""
    for _ in range(num_requests):
        num_ids = 0
        async for event in stub.Generate(_request(number, num_tokens), timeout=120):
            num_ids += len(event.token.ids)
        assert num_ids == num_tokens, num_ids


def cpu_times_us(mesh: Mesh) -> Row:
    """So far."""
    engine = thread_times_us(mesh.pid("engine-0"))
    compute = sum(us for name, us in engine if name == COMPUTE_THREAD)
    return {
        "gateway": sum(us for _, us in thread_times_us(mesh.pid("gateway-0"))),
        "scheduler": sum(us for _, us in thread_times_us(mesh.pid("scheduler-0"))),
        "engine without compute": sum(us for _, us in engine) - compute,
        COMPUTE: compute,
    }


def thread_times_us(pid: int) -> list[tuple[str, float]]:
    """Name and CPU time of every thread of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [
        ((task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0]) / 1000)
        for task in tasks
    ]


async def first_tokens(stub: "Stub", engine: EngineInProcess, num_firsts: int) -> Row:
    """Milliseconds to the first token at one stream, the ways taking turns."""
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "in process": lambda: engine.run(_prompt(0), 1),
        "mesh, ids": lambda: _first_over_mesh(stub, _request(0, 1)),
        "mesh, text": lambda: _first_over_mesh(stub, _text_request()),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_firsts + NUM_WARM):
        for name, first in ways.items():
            times[name].append(await first() * 1e3)
            await asyncio.sleep(0.01)
    medians = {name: statistics.median(values[NUM_WARM:]) for name, values in times.items()}
    added = {name: ms - medians["in process"] for name, ms in medians.items() if name != "in process"}
    return {f"TTFT ms, {name}": ms for name, ms in medians.items()} | {
        f"TTFT ms added by the {name}": ms for name, ms in added.items()
    }


async def _first_over_mesh(stub: "Stub", request: gateway_pb2.GenerateRequest) -> float:
    begin_s = time.perf_counter()
    first_s = 0.0
    async for event in stub.Generate(request, timeout=120):
        if event.HasField("token") and not first_s:
            first_s = time.perf_counter()
    return first_s - begin_s


def _prompt(number: int) -> tuple[int, ...]:
    """Different for each caller."""
    return tuple(100 + (number * 997 + i * 13) % 20_000 for i in range(PROMPT_TOKENS))


def _request(number: int, num_tokens: int) -> gateway_pb2.GenerateRequest:
    ids = gateway_pb2.TokenIds(ids=_prompt(number))
    request = gateway_pb2.GenerateRequest(ids=ids, max_tokens=num_tokens)
    request.sampling.temperature = 0
    return request


def _text_request() -> gateway_pb2.GenerateRequest:
    request = gateway_pb2.GenerateRequest(text=TEXT, max_tokens=1)
    request.sampling.temperature = 0
    return request


if __name__ == "__main__":
    main()
