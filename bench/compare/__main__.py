"""`python -m bench.compare`, or `make compare`: pagemesh beside the peers that are installed, on these cores.

Peers are named in a file (see bench/compare/peers_file.py). What is measured is kept in --json after every
run, so that an interrupted comparison goes on; --fresh starts anew, --report only prints what is there.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.compare.configuration import Configuration
from bench.compare.folders import BUILD, DOCUMENT, ROOT
from bench.compare.gguf_files import gguf_files
from bench.compare.llamacpp import llamacpp_configurations
from bench.compare.mesh import ROWS, SETTINGS, mesh_configuration
from bench.compare.openvino import openvino_configurations
from bench.compare.peer_process import PeerError
from bench.compare.peers_file import Peers, PeersFileError, read_peers
from bench.compare.quality_figures import mean_kls
from bench.compare.report import report
from bench.compare.rounds import Plan, Rounds, choose, choosing_tasks, estimate_s, main_tasks
from bench.compare.store import Store
from bench.compare.vllm import vllm_configurations
from bench.flags import names, numbers
from bench.generated import write_between
from bench.load.drivers.driver import RequestError
from bench.progress import say
from services.contract.model_folder import resolve_model

QUALITY_FILES = [ROOT / "build" / "quality.json", BUILD / "peer_quality.json"]
"""Of `make quality`, and of the peers' scoring."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    told = _parser().parse_args()
    try:
        peers = read_peers(told.peers)
    except PeersFileError as error:
        return _complain(str(error))
    for name in peers.absent:
        say(f"*** {name} is not in {told.peers}: LEFT OUT ***")
    configurations = _configurations(peers, told.rows)
    plan = Plan(told.streams, told.rounds, told.duration, told.choosing)
    if told.fresh:
        told.json.unlink(missing_ok=True)
    store = Store(told.json, _plan_json(plan))
    if not told.report:
        try:
            _measure(configurations, plan, store)
        except (PeerError, RequestError) as error:
            return _complain(f"{error}; what was measured is in {told.json}: start again to go on")
    lines = report(store.measurements, configurations, mean_kls(*told.quality), peers.absent)
    print("\n".join(lines))
    if told.docs:
        write_between(DOCUMENT, "comparison", lines)
    return 0


def _measure(configurations: Sequence[Configuration], plan: Plan, store: Store) -> None:
    """The choosing round, then the rounds of the chosen."""
    rounds = Rounds(plan, store, BUILD / "logs", say)
    choosing = choosing_tasks(configurations, plan)
    guess = main_tasks(choose(configurations, store.measurements, plan), plan)
    minutes = estimate_s([*choosing, *guess], plan) / 60
    say(f"{plan.num_rounds} rounds, {plan.duration_s:g} s per row and streams: about {minutes:.0f} min")
    rounds.run(choosing)
    rounds.run(main_tasks(choose(configurations, store.measurements, plan), plan))


def _configurations(peers: Peers, rows: Sequence[str]) -> list[Configuration]:
    model = resolve_model("smollm2", say).resolve()
    found = [mesh_configuration(row, model, SETTINGS[row]) for row in rows]
    if peers.vllm:
        found += vllm_configurations(peers.vllm, model)
    if peers.openvino or peers.llamacpp:
        ggufs = gguf_files(model, BUILD / "gguf", peers.llamacpp, say)
        if peers.openvino:
            found += openvino_configurations(peers.openvino, ggufs)
        if peers.llamacpp:
            found += llamacpp_configurations(peers.llamacpp, ggufs)
    return found


def _plan_json(plan: Plan) -> dict[str, object]:
    return {
        "streams": plan.streams,
        "rounds": plan.num_rounds,
        "duration_s": plan.duration_s,
        "choosing_s": plan.choosing_s,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / "peers.toml", help="where peers are installed")
    parser.add_argument(
        "--rows", type=names(SETTINGS), default=ROWS, help=f"pagemesh's, of {', '.join(SETTINGS)}"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=15.0, help="seconds of each run")
    parser.add_argument(
        "--choosing", type=float, default=5.0, help="seconds of each run of the choosing round"
    )
    parser.add_argument("--streams", type=numbers, default=(1, 4, 16, 32))
    parser.add_argument("--json", type=Path, default=BUILD / "compare.json", help="what was measured")
    parser.add_argument("--quality", type=Path, nargs="*", default=QUALITY_FILES, help="figures of KL")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/comparison.md")
    return parser


def _complain(line: str) -> int:
    say(f"bench.compare: {line}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
