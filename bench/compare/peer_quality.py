"""`python -m bench.compare.peer_quality`: the KL of peers' quantized formats, as `make quality` has it.

The same windows and the same judge (transformers in fp32). OpenVINO gives whole logits; llama.cpp's server
gives the likeliest ids' probabilities; its rest counts as one id: a lower bound of the KL, but a close one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from bench.compare.configuration import Configuration, cores
from bench.compare.folders import BUILD, ROOT
from bench.compare.gguf_files import gguf_files
from bench.compare.llamacpp import llamacpp_configurations
from bench.compare.openvino import INSIDE
from bench.compare.peers_file import Peers, PeersFileError, read_peers
from bench.progress import say
from bench.quality.reference import Judgement, Reference
from bench.quality.score import Logits, score_tokens, summarize
from bench.quality.windows import Window, read_windows
from services.contract.model_folder import open_model_folder, resolve_model

NUM_LIKELIEST = 1_000
Scored = Callable[[Window, Judgement], Logits]
"""A peer's logits for a window's answer, [answer ids, vocabulary]."""


def main() -> None:
    told = _parser().parse_args()
    try:
        peers = read_peers(told.peers)
    except PeersFileError as error:
        sys.exit(f"bench.compare.peer_quality: {error}")
    folder = open_model_folder(resolve_model("smollm2", say).resolve())
    windows = read_windows(folder.path, told.answer_tokens)[:: told.every]
    reference = Reference(folder.path, folder.vocab_size, num_greedy_tokens=1)
    judgements = [reference.judge(window) for window in windows]
    say(f"{sum(len(window.answer_ids) for window in windows)} tokens in {len(windows)} windows")
    rows = []
    for option, open_peer in _options(peers, folder.path):
        with open_peer(windows) as scored:
            rows.append(_row(option, windows, judgements, scored))
        say(json.dumps(rows[-1]))
        told.json.parent.mkdir(parents=True, exist_ok=True)
        told.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _row(
    option: str, windows: Sequence[Window], judgements: Sequence[Judgement], scored: Scored
) -> dict[str, object]:
    pairs = zip(windows, judgements, strict=True)
    scores = [
        score
        for window, judgement in pairs
        for score in score_tokens(judgement.logits, scored(window, judgement))
    ]
    found = summarize(scores)
    figures = {"tokens": found.num_tokens, "top1": found.top1, "mean_kl": found.mean_kl}
    return {"option": option, "all": {**figures, "p99_kl": found.p99_kl, "worst_kl": found.worst_kl}}


Open = Callable[[Sequence[Window]], AbstractContextManager[Scored]]


def _options(peers: Peers, model: Path) -> Iterator[tuple[str, Open]]:
    ggufs = gguf_files(model, BUILD / "gguf", peers.llamacpp, say)
    if peers.openvino:
        for weights in ("Q4_1", "Q4_0", "Q8_0"):
            if weights in ggufs:
                yield f"OpenVINO GenAI {weights}", _openvino(peers.openvino, ggufs[weights])
    if peers.llamacpp:
        for way in llamacpp_configurations(peers.llamacpp, ggufs):
            if way.name == way.weights:  # the other ways have the same numbers
                yield f"llama.cpp {way.weights}", _llamacpp(way)


def _openvino(environment: Path, gguf: Path) -> Open:
    @contextmanager
    def open_peer(windows: Sequence[Window]) -> Iterator[Scored]:
        with tempfile.TemporaryDirectory() as scratch:
            python, script = environment / "bin" / "python", INSIDE / "openvino_logits.py"
            command = [*map(str, (python, script, gguf, scratch, len(cores())))]
            told = "".join(json.dumps(_ids(window)) + "\n" for window in windows)
            subprocess.run(command, input=told, text=True, check=True, stdout=subprocess.DEVNULL)
            places = {window.name: index for index, window in enumerate(windows)}
            yield lambda window, judgement: np.load(Path(scratch) / f"{places[window.name]}.npy")[
                :, : judgement.logits.shape[1]
            ]

    return open_peer


def _llamacpp(way: Configuration) -> Open:
    @contextmanager
    def open_peer(windows: Sequence[Window]) -> Iterator[Scored]:
        with way.open(BUILD / "logs") as started:

            def scored(window: Window, judgement: Judgement) -> Logits:
                known = list(window.prompt_ids)
                rows = []
                for index, token_id in enumerate(window.answer_ids):
                    likeliest = _likeliest(started.target, known)
                    rows.append(filled_up(likeliest, judgement.logits[index]))
                    known.append(token_id)
                return np.stack(rows)

            yield scored

    return open_peer


def _likeliest(url: str, ids: Sequence[int]) -> Mapping[int, float]:
    """Logarithms of the probabilities of the likeliest next ids."""
    # What is drawn is dictated: an end or half a character would come without probabilities. Those that are
    # told are of the logits as they were.
    told = {"n_predict": 1, "n_probs": NUM_LIKELIEST, "temperature": 0, "logit_bias": [[" the", 1000]]}
    body = {"prompt": list(ids), **told}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        (position,) = json.load(answer)["completion_probabilities"]
    return {entry["id"]: entry["logprob"] for entry in position["top_logprobs"]}


def filled_up(likeliest: Mapping[int, float], expected: Logits) -> Logits:
    """The rest of the probability in the expected proportions: no KL but that of the rest as a whole."""
    logs = expected.astype(np.float64)
    logs -= np.log(np.exp(logs - logs.max()).sum()) + logs.max()
    ids = np.array(list(likeliest))
    given = np.array(list(likeliest.values()))
    left = max(1 - np.exp(given).sum(), 1e-9)
    is_rest = np.ones(len(logs), bool)
    is_rest[ids] = False
    filled = logs + np.log(left) - np.log(max(np.exp(logs[is_rest]).sum(), 1e-300))
    filled[ids] = given
    logits: Logits = filled.astype(np.float32)
    return logits


def _ids(window: Window) -> dict[str, object]:
    return {"prompt_ids": window.prompt_ids, "answer_ids": window.answer_ids}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.compare.peer_quality", description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / "peers.toml")
    parser.add_argument("--every", type=int, default=1, help="of so many windows one")
    parser.add_argument("--answer-tokens", type=int, default=48)
    parser.add_argument("--json", type=Path, default=BUILD / "peer_quality.json")
    return parser


if __name__ == "__main__":
    main()
