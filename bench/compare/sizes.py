"""`python -m bench.compare.sizes`, or `make compare-sizes`: what model size does to the ratio.

Random weights of two larger shapes, bf16, pagemesh against vLLM with its threads bound to the cores. The
larger the model, the more both wait for the same memory, so the ratio should shrink.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.compare.folders import BUILD, DOCUMENT, ROOT
from bench.compare.goals import VLLM, interval_text, streams_text
from bench.compare.mesh import BF16, SETTINGS, mesh_configuration
from bench.compare.peer_process import PeerError
from bench.compare.peers_file import Peers, PeersFileError, read_peers
from bench.compare.random_models import SHAPES, random_model
from bench.compare.results import Results, own
from bench.compare.rounds import Plan, Rounds, estimate_s, main_tasks
from bench.compare.store import Store
from bench.compare.vllm import vllm_configurations
from bench.flags import names, numbers
from bench.generated import table, write_between
from bench.load.drivers.driver import RequestError
from bench.progress import say
from services.contract.model_folder import resolve_model


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    told = _parser().parse_args()
    plan = Plan(told.streams, told.rounds, told.duration)
    try:
        rows = _rows(told, plan)
    except (PeersFileError, PeerError, RequestError) as error:
        say(f"bench.compare.sizes: {error}; what was measured is kept: start again to go on")
        return 1
    lines = table(("shape", "", *map(streams_text, plan.streams)), rows)
    print("\n".join(lines))
    if told.docs:
        write_between(DOCUMENT, "sizes", lines)
    return 0


def _rows(told: argparse.Namespace, plan: Plan) -> list[tuple[str, ...]]:
    peers = read_peers(told.peers)
    rows = []
    for shape in told.shapes:
        kept_for = {"shape": shape, "rounds": plan.num_rounds, "duration_s": plan.duration_s}
        file = told.json.with_suffix(f".{shape}.json")
        if told.fresh:
            file.unlink(missing_ok=True)
        store = Store(file, kept_for)
        if not told.report:
            _measure(shape, peers, plan, store)
        rows += lines_of(shape, Results(store.measurements), plan.streams)
    return rows


def _measure(shape: str, peers: Peers, plan: Plan, store: Store) -> None:
    default = resolve_model("smollm2", say).resolve()
    model = random_model(BUILD / "models", shape, default, say)
    configurations = [mesh_configuration(BF16, model, SETTINGS[BF16])]
    if peers.vllm is None:
        say("*** vllm is not installed: LEFT OUT ***")
    else:
        configurations.append(vllm_configurations(peers.vllm, model)[0])
    tasks = main_tasks(dict.fromkeys(configurations, plan.streams), plan)
    say(f"{shape}: about {estimate_s(tasks, plan) / 60:.0f} min")
    Rounds(plan, store, BUILD / "logs", say).run(tasks)


def lines_of(shape: str, results: Results, streams: Sequence[int]) -> list[tuple[str, ...]]:
    """Two rows of rates and one of ratios; what was not measured has no row, or a dash in it."""
    rows = []
    for name in (own(BF16), VLLM):
        if any(results.of(name, count) for count in streams):
            rows.append((shape, name, *(_rate(results, name, count) for count in streams)))
    ratios = [results.ratio(own(BF16), VLLM, count) for count in streams]
    if any(ratios):
        rows.append((shape, "ratio", *(interval_text(it) if it else "–" for it in ratios)))
    return rows


def _rate(results: Results, name: str, num_streams: int) -> str:
    return f"{results.rate(name, num_streams):.1f} tok/s" if results.of(name, num_streams) else "–"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.compare.sizes", description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / "peers.toml")
    parser.add_argument("--shapes", type=names(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=15.0)
    parser.add_argument("--streams", type=numbers, default=(1, 16, 32))
    parser.add_argument("--json", type=Path, default=BUILD / "sizes.json")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/comparison.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
