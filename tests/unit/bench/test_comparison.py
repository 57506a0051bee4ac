"""The comparison's own arithmetic: what is chosen, what is a goal, what is a loss, what is kept."""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from bench.compare.configuration import Configuration, Started
from bench.compare.gguf_files import gguf_files
from bench.compare.goals import goals
from bench.compare.losses import losses
from bench.compare.measurement import CHOOSING, Measurement
from bench.compare.peer_process import PeerError, PeerProcess
from bench.compare.peer_quality import filled_up
from bench.compare.peers_file import Peers, PeersFileError, read_peers
from bench.compare.quality_figures import kl_text, mean_kls
from bench.compare.report import report
from bench.compare.results import Results
from bench.compare.rounds import Plan, choose, choosing_tasks, main_tasks
from bench.compare.store import Store
from bench.quality.score import score_tokens

PLAN = Plan(streams=(1, 16), num_rounds=3)


def configuration(system: str, name: str, weights: str = "bf16") -> Configuration:
    return Configuration(system, name, weights, f"start {name}", lambda logs: nullcontext(Started("", 0.0)))


OWN_BF16 = configuration("pagemesh", "bf16")
OWN_INT8 = configuration("pagemesh", "int8", "int8")
BOUND, FREE = configuration("vLLM", "bound"), configuration("vLLM", "free")
Q4 = configuration("llama.cpp", "Q4_0", "Q4_0")
ALL = [OWN_BF16, OWN_INT8, BOUND, FREE, Q4]


def found(
    way: Configuration, number: int, num_streams: int, rate: float, ttft_ms: float = 50.0
) -> Measurement:
    return Measurement(way.key, number, num_streams, rate, (ttft_ms,) * 40, 10.0, 0.2, 0, 0.1, 5.0, 300.0)


def rounds_of(way: Configuration, num_streams: int, rate: float, ttft_ms: float = 50.0) -> list[Measurement]:
    return [found(way, number, num_streams, rate + number, ttft_ms) for number in (1, 2, 3)]


def test_each_number_of_streams_gets_a_peers_best_way() -> None:
    chosen = choose(
        ALL,
        [
            found(BOUND, CHOOSING, 1, 30), found(FREE, CHOOSING, 1, 20),
            found(BOUND, CHOOSING, 16, 200), found(FREE, CHOOSING, 16, 300),
        ],
        PLAN,
    )  # fmt: skip
    assert chosen == {OWN_BF16: [1, 16], OWN_INT8: [1, 16], BOUND: [1], FREE: [16], Q4: [1, 16]}


def test_only_rows_with_a_choice_are_measured_for_it() -> None:
    assert [task.configuration for task in choosing_tasks(ALL, PLAN)] == [BOUND, FREE]


def test_rounds_alternate_their_order() -> None:
    tasks = main_tasks({OWN_BF16: [1], Q4: [1]}, PLAN)
    order = [(task.round, task.configuration) for task in tasks]
    assert order == [(1, OWN_BF16), (1, Q4), (2, Q4), (2, OWN_BF16), (3, OWN_BF16), (3, Q4)]


def test_goals_are_of_the_best_peer_and_of_vllms_first_token() -> None:
    results = Results(
        [
            *rounds_of(OWN_BF16, 1, 90), *rounds_of(OWN_BF16, 16, 1000, ttft_ms=100),
            *rounds_of(OWN_INT8, 1, 210),
            *rounds_of(BOUND, 1, 30), *rounds_of(BOUND, 16, 300, ttft_ms=500), *rounds_of(Q4, 1, 100),
            found(Q4, CHOOSING, 16, 9999),
        ]
    )  # fmt: skip
    met = {goal.text: goal.is_met for goal in goals(results)}
    assert met == {
        "bf16 ≥ 1 × the best peer, 1 stream": False,  # 90 against llama.cpp's 100
        "bf16 ≥ 3 × the best peer, 16 streams": True,  # the choosing round counts for nothing
        "bf16 ≥ 3 × the best peer, 32 streams": None,
        "int8 ≥ 2 × the best peer, 1 stream": True,
        "int8 ≥ 4 × the best peer, 16 streams": None,
        "bf16's TTFT ≤ a third of vLLM's, 16 streams": True,
    }


def test_a_peer_that_is_ahead_is_named() -> None:
    results = Results([*rounds_of(OWN_BF16, 1, 90, ttft_ms=20), *rounds_of(Q4, 1, 100, ttft_ms=50)])
    assert [(loss.what, loss.mine, loss.theirs) for loss in losses(results)] == [
        ("tokens/s, 1 stream, llama.cpp", "92", "102")
    ]


def test_the_report_names_who_is_absent_and_what_quantization_costs() -> None:
    rows = [*rounds_of(OWN_BF16, 1, 90), *rounds_of(Q4, 1, 100), found(Q4, CHOOSING, 1, 99)]
    text = "\n".join(report(rows, [OWN_BF16, Q4], {"llama.cpp Q4_0": 0.0123}, ["vllm"]))
    assert "Left out, not installed: vllm" in text
    assert "| llama.cpp: Q4_0 | Q4_0 | 0.012 | **99** |" in text
    assert "| llama.cpp | Q4_0; KL 0.012 |" in text
    assert "`start Q4_0`" in text


def test_kl_is_never_silently_missing() -> None:
    assert kl_text({}, "llama.cpp", "Q8_0", is_quantized=True) == "not measured"
    assert kl_text({}, "vLLM", "bf16", is_quantized=False) == "–"


def test_own_rows_have_the_figures_of_make_quality() -> None:
    assert kl_text({"native int8": 0.0037}, "pagemesh", "int8", is_quantized=True) == "0.0037"


def test_a_rest_that_is_not_told_adds_no_kl_of_its_own() -> None:
    expected = np.random.default_rng(0).normal(size=50).astype(np.float32)
    logs = expected - np.log(np.exp(expected).sum())
    told = {int(number): float(logs[number]) for number in np.argsort(-logs)[:10]}
    (score,) = score_tokens(expected[None], filled_up(told, expected)[None])
    assert score.kl < 1e-6
    wrong = {number: value - 0.1 for number, value in told.items()}
    (score,) = score_tokens(expected[None], filled_up(wrong, expected)[None])
    assert 0.001 < score.kl < 0.1


def test_quality_is_read_by_line_or_as_a_list(tmp_path: Path) -> None:
    lines, whole = tmp_path / "lines.json", tmp_path / "list.json"
    lines.write_text(
        '{"option": "a", "all": {"mean_kl": 0.5}}\n\n{"option": "b", "all": {"mean_kl": 0.25}}\n'
    )
    whole.write_text('[{"option": "c", "all": {"mean_kl": 0.125}}]')
    assert mean_kls(lines, whole, tmp_path / "absent") == {"a": 0.5, "b": 0.25, "c": 0.125}


def test_what_was_measured_is_kept_under_its_plan(tmp_path: Path) -> None:
    path, row = tmp_path / "sub" / "compare.json", found(Q4, 1, 1, 100)
    Store(path, {"rounds": 3}).add(row)
    assert Store(path, {"rounds": 3}).measurements == [row]
    assert Store(path, {"rounds": 3}).has(row.place)
    assert Store(path, {"rounds": 5}).measurements == []


def test_formats_are_made_of_the_published_file_once(tmp_path: Path) -> None:
    model, made, tools = tmp_path / "model", tmp_path / "made", tmp_path / "tools"
    for folder in (model, tools):
        folder.mkdir()
    published = model / "some.Q4_1.gguf"
    published.write_text("blocks")
    assert gguf_files(model, made, None, lambda line: None) == {"Q4_1": published}
    quantizer = tools / "llama-quantize"
    quantizer.write_text('#!/bin/sh\necho "$4 of $(cat "$2")" > "$3"\n')
    quantizer.chmod(0o755)
    files = gguf_files(model, made, tools, lambda line: None)
    assert files["Q8_0"].read_text() == "Q8_0 of blocks\n"
    quantizer.write_text("#!/bin/sh\nexit 1\n")
    assert gguf_files(model, made, tools, lambda line: None) == files


def test_peers_are_what_the_file_names(tmp_path: Path) -> None:
    server = tmp_path / "llama" / "llama-server"
    server.parent.mkdir()
    server.touch()
    file = tmp_path / "peers.toml"
    file.write_text(f'[llamacpp]\nbinaries = "{server.parent}"\n')
    peers = read_peers(file)
    assert peers == Peers(llamacpp=server.parent)
    assert peers.absent == ("vllm", "openvino")
    assert read_peers(tmp_path / "none.toml").absent == ("vllm", "openvino", "llamacpp")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('[sglang]\nenvironment = "/x"', "sglang is no peer"),
        ("[vllm]\n", "has no environment"),
        ('[vllm]\nenvironment = "/nowhere"', "there is no /nowhere/bin/python"),
        ("[vllm", "peers.toml"),
    ],
)
def test_a_peer_that_is_named_and_not_there_is_an_error(tmp_path: Path, text: str, cause: str) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(text)
    with pytest.raises(PeersFileError, match=cause):
        read_peers(file)


def test_a_peers_whole_group_ends_with_it(tmp_path: Path) -> None:
    child = "import time; open('child', 'w').write(str(__import__('os').getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    mark = tmp_path / "child"
    command = [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {parent}"]
    with PeerProcess("peer", command, {}, tmp_path / "peer.log") as peer:
        peer.wait_until(lambda: mark.exists() and bool(mark.read_text()), 30)
        pid = int(mark.read_text())
        assert Path(f"/proc/{pid}").exists()
    status = Path(f"/proc/{pid}/stat")
    assert not status.exists() or " Z " in status.read_text()


def test_a_peer_that_ends_early_is_an_error_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "peer.log"
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        PeerProcess("peer", command, {}, log) as peer,
        pytest.raises(PeerError, match=f"ended with 3; see {log}"),
    ):
        peer.wait_until(lambda: False, 30)
    assert log.read_text() == "no such model\n"
