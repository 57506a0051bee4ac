"""Times a session's second turn: `python -m bench.session_ttft [--json]`.

K3: time to first token of the second turn with the session's cached blocks, against the same turn with
cache policy BYPASS, over histories of 250 to 4,000 tokens. Both are measured in pairs in one run of real
processes (one engine, torch fp32); the ratio is the median of the pairs'. The bar is 8.8 at 2,000 tokens.
"""

import argparse
import json
import platform
import statistics

from tokenizers import Tokenizer

from pagemesh import Client
from pagemesh.request import CachePolicy
from services.contract.model_folder import resolve_model
from tests.support.mesh import Mesh
from tests.support.workload import PROSE

HISTORY_LENGTHS = (250, 500, 1000, 2000, 4000)
QUESTION = "Which of these points matters most?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="pairs per length (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with (
        Mesh(engines=1, executor="torch", settings={"engine": {"num_threads": 2}}) as mesh,
        mesh.client() as client,
    ):
        rows = [measure(client, length, arguments.pairs) for length in HISTORY_LENGTHS]
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}))
        return
    print(f"{'history':>8} {'cached':>8} {'reused ms':>10} {'bypass ms':>10} {'ratio':>7}")
    for row in rows:
        print(
            f"{row['history_tokens']:8.0f} {row['cached_tokens']:8.0f} {row['reused_ms']:10.1f} "
            f"{row['bypass_ms']:10.1f} {row['ratio']:7.1f}"
        )


def measure(client: Client, history_length: int, num_pairs: int) -> dict[str, float]:
    """One length: medians of both and of the pairs' ratios."""
    pairs = []
    for index in range(num_pairs):
        reused, cached, history = second_turn(client, _prose(history_length, index), CachePolicy.USE)
        bypass, none_cached, _ = second_turn(client, _prose(history_length, index), CachePolicy.BYPASS)
        assert none_cached == 0, none_cached
        pairs.append((reused, bypass, cached, history))
    reused, bypass, cached, history = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "history_tokens": history,
        "cached_tokens": cached,
        "reused_ms": reused,
        "bypass_ms": bypass,
        "ratio": statistics.median(pair[1] / pair[0] for pair in pairs),
    }


def second_turn(client: Client, text: str, policy: CachePolicy) -> tuple[float, float, float]:
    """Gives (time to first token in ms, cached tokens, history tokens) of a fresh session's second turn."""
    with client.open_session("bench") as session:
        first = session.collect(text, max_tokens=8, temperature=0.0)
        second = session.collect(QUESTION, max_tokens=4, temperature=0.0, cache_policy=policy)
        history = first.usage.total_tokens
        return second.receipt.ttft_ms, second.usage.cached_tokens, history


def _prose(num_tokens: int, index: int) -> str:
    """About so many tokens of prose that no other pair begins with."""
    tokenizer = Tokenizer.from_file(str(resolve_model("smollm2") / "tokenizer.json"))
    ids = tokenizer.encode(PROSE.read_text() * 2, add_special_tokens=False).ids
    return f"Text {num_tokens} {index}: " + tokenizer.decode(ids[index : index + num_tokens])


if __name__ == "__main__":
    main()
