"""CPU time of a gateway per streamed token: `python -m bench.gateway_cpu [--streams 32] [--json]`.

Real processes with the scripted executor, one step every few milliseconds for all streams together. CPU time
is the gateway process's own (user and system), so a loaded machine changes it little; tokens that wait for
the writer share an event, so events are counted as well.
"""

import argparse
import asyncio
import json
import os
import statistics
from pathlib import Path

import grpc

from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc
from tests.support.mesh import Mesh

STEP_MS = 5
PROMPT = [100, 200, 300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400, help="per stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rounds = asyncio.run(measure(arguments.streams, arguments.tokens, arguments.rounds))
    result = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    if arguments.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:>22} {value:10.1f}")


async def measure(num_streams: int, num_tokens: int, num_rounds: int) -> list[dict[str, float]]:
    """One row per round, after a first that only warms up."""
    output_ids = [1000 + 7 * i % 20_000 for i in range(num_tokens)]
    script = {"scripts": [{"prompt_ids": PROMPT, "output_ids": output_ids, "step_ms": STEP_MS}]}
    settings = {"engine": {"max_sequences": num_streams}}
    async with (
        Mesh(engines=1, script=script, settings=settings) as mesh,
        grpc.aio.insecure_channel(mesh.gateways[0]) as channel,
    ):
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        pid = mesh.pid("gateway-0")
        return [await one_round(stub, pid, num_streams, num_tokens) for _ in range(num_rounds + 1)][1:]


async def one_round(
    stub: "gateway_pb2_grpc.GatewayServiceAsyncStub", pid: int, num_streams: int, num_tokens: int
) -> dict[str, float]:
    """All streams at once, from the first request to the last `complete`."""
    loop = asyncio.get_running_loop()
    cpu_s, wall_s = cpu_time_s(pid), loop.time()
    counts = await asyncio.gather(*(stream(stub, num_tokens) for _ in range(num_streams)))
    cpu_s, wall_s = cpu_time_s(pid) - cpu_s, loop.time() - wall_s
    num_streamed = num_streams * num_tokens
    return {
        "cpu_us_per_token": cpu_s / num_streamed * 1e6,
        "cpu_us_per_event": cpu_s / sum(counts) * 1e6,
        "tokens_per_event": num_streamed / sum(counts),
        "cpu_share_percent": cpu_s / wall_s * 100,
        "wall_s": wall_s,
    }


async def stream(stub: "gateway_pb2_grpc.GatewayServiceAsyncStub", num_tokens: int) -> int:
    """Reads one stream to its end and returns its number of token events."""
    request = gateway_pb2.GenerateRequest(ids=gateway_pb2.TokenIds(ids=PROMPT), max_tokens=num_tokens)
    request.sampling.temperature = 0
    num_events = num_ids = 0
    async for event in stub.Generate(request, timeout=120):
        if event.HasField("token"):
            num_events += 1
            num_ids += len(event.token.ids)
    assert num_ids == num_tokens, num_ids
    return num_events


def cpu_time_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
