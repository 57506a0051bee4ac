"""What it costs that the tokenizer is a process of its own: `python -m bench.encode_hop [--json]`.

Means over requests that come one at a time: the receipt's encode hop as the gateway saw it, and the time
inside the tokenizer; the difference is the hop. Prompts of about 40 and 800 tokens, no two alike.
"""

import argparse
import json
import statistics

from pagemesh import Client
from tests.support.mesh import Mesh
from tests.support.workload import PROSE

NUM_WARM = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="per prompt length (default 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with Mesh(engines=1) as mesh, mesh.client() as client:
        rows = {size: measure(mesh, client, size, arguments.requests) for size in (160, 4000)}
    if arguments.json:
        print(json.dumps(rows))
        return
    for size, (gateway_ms, tokenizer_ms) in rows.items():
        hop_ms = gateway_ms - tokenizer_ms
        print(f"{size} bytes: encode {gateway_ms:.2f} ms, inside {tokenizer_ms:.2f}, the hop {hop_ms:.2f}")


def measure(mesh: Mesh, client: Client, num_bytes: int, num_requests: int) -> tuple[float, float]:
    """Gives the mean as the gateway saw it and the mean inside the tokenizer, milliseconds."""
    prose = PROSE.read_text()
    for index in range(NUM_WARM):
        client.collect(f"warm {index} {prose[index : index + num_bytes]}", max_tokens=1)
    before = _inside(mesh)
    hops = [
        client.collect(f"{index} {prose[index : index + num_bytes]}", max_tokens=1).receipt.hops.encode_ms
        for index in range(num_requests)
    ]
    seconds, count = (after - was for after, was in zip(_inside(mesh), before, strict=True))
    return statistics.mean(hops), 1000 * seconds / count


def _inside(mesh: Mesh) -> tuple[float, float]:
    metrics = mesh.metrics("tokenizer-0")
    name = "pagemesh_tokenizer_encode_seconds"
    return metrics.total(f"{name}_sum"), metrics.total(f"{name}_count")


if __name__ == "__main__":
    main()
