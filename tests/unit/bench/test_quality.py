"""Quality: scores against plain arithmetic, gates that refuse, and a small run on a tiny model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.quality import __main__ as quality
from bench.quality.forced import num_blocks_for, score_forced
from bench.quality.gates import GATES, Gate, missed
from bench.quality.kept import keep_in
from bench.quality.options import OPTIONS, make_option
from bench.quality.reference import Judgement, Reference
from bench.quality.result import OptionResult, judge_option
from bench.quality.score import first_divergence, score_tokens, summarize
from bench.quality.windows import GROUPS, KINDS, Window, read_windows
from services.contract.model_folder import open_model_folder
from tests.support.executor_driver import ExecutorDriver
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def windows(folder: Path) -> list[Window]:
    return read_windows(folder, max_answer_tokens=3)


def test_kl_and_agreement_are_those_of_the_definition() -> None:
    expected = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
    given = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]], np.float32)) + 3  # logits have no zero
    parted, same = score_tokens(expected, given)
    assert parted.kl == pytest.approx(0.5 * np.log(2) - 0.25 * np.log(2), rel=1e-5)
    assert (parted.expected_id, parted.given_id, parted.agrees) == (0, 1, False)
    assert parted.expected_probability == pytest.approx(0.5, rel=1e-5)
    assert parted.given_probability == pytest.approx(0.25, rel=1e-5)
    assert same.agrees
    assert same.kl == pytest.approx(0, abs=1e-6)
    assert summarize([parted, same]).top1 == 0.5


def test_first_divergence() -> None:
    assert first_divergence([1, 2, 3], [1, 2, 3]) == 3
    assert first_divergence([1, 2, 3], [1, 4, 3]) == 1


def test_every_cell_has_windows_of_its_length(windows: list[Window]) -> None:
    cells = {(window.group, window.kind) for window in windows}
    assert cells == {(group, kind) for group in GROUPS for kind in KINDS}
    for window in windows:
        assert len(window.prompt_ids) >= GROUPS[window.group]
    assert len({window.prompt_ids for window in windows}) == len(windows)


def _result(windows: list[Window], *, worst_kl: float, agrees: bool) -> OptionResult:
    (good,) = score_tokens(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))
    bad = replace(good, kl=worst_kl, given_id=0 if agrees else 1)
    scores = [[good] * 9 + [bad if window.kind == "code" else good] for window in windows]
    return judge_option("some option", windows, scores, [5] * len(windows), 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_top1": 0.99}, "top-1 0.9833 is below"),
        ({"min_cell_top1": 0.95}, "code: top-1 0.9000 is below"),
        ({"max_kl": 0.1}, "mean KL 0.17 is above"),
        ({"max_cell_kl": 0.5}, "code: mean KL 1 is above"),
        ({"min_divergence": 6}, "median first divergence 5 is before 6"),
    ],
)
def test_each_threshold_refuses(windows: list[Window], change: dict[str, float], said: str) -> None:
    loose = Gate(min_top1=0.98, min_cell_top1=0.9, max_kl=0.2, max_cell_kl=1.1, min_divergence=5)
    result = _result(windows, worst_kl=10.0, agrees=False)
    assert list(missed(result, loose)) == []
    (line,) = missed(result, replace(loose, **change))  # type: ignore[arg-type]
    assert said in line


def test_the_worst_tokens_come_first(windows: list[Window]) -> None:
    result = _result(windows, worst_kl=10.0, agrees=True)
    num_bad = sum(window.kind == "code" for window in windows)
    assert [token.score.kl > 0 for token in result.worst] == [True] * num_bad + [False] * (10 - num_bad)


def test_every_option_has_a_gate() -> None:
    assert set(OPTIONS) == set(GATES)


def test_plain_arithmetic_holds_its_gate_and_a_changed_model_does_not(
    folder: Path, windows: list[Window], tmp_path: Path
) -> None:
    """Forced ids through the executor's cache are scored as transformers scores them."""
    opened = open_model_folder(folder)
    chosen = windows[::9]
    reference = Reference(folder, opened.vocab_size, 4)
    judgements = [reference.judge(window) for window in chosen]
    other = make_tiny_model(tmp_path / "other", seed=1, max_position_embeddings=4096)
    mean_kl = {}
    for name, model in (("same", folder), ("other", other)):
        executor = make_option("torch float32", str(model), num_threads=1)
        executor.load()
        driver = ExecutorDriver(executor, num_blocks_for(chosen, 4))
        scores = score_forced(executor, driver, chosen, judgements)
        assert [len(row) for row in scores] == [len(window.answer_ids) for window in chosen]
        mean_kl[name] = summarize([score for row in scores for score in row]).mean_kl
    assert mean_kl["same"] < 1e-8
    assert mean_kl["other"] > 0.1


def test_a_small_run_prints_every_cell_and_the_worst(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--every=4", "--answer-tokens=2", "--greedy-tokens=2", "--threads=1"]
    code = quality.main([f"--model={folder}", "--options=torch float32", *small])
    printed = capsys.readouterr()
    for cell in ("all", *GROUPS, *KINDS):
        assert f"| torch float32 | {cell} |" in printed.out
    assert printed.out.count("- KL ") == 10
    assert code == 0, printed.err
    assert "gates held: torch float32" in printed.err


def test_a_kept_judgement_is_read_for_the_same_window_only(windows: list[Window], tmp_path: Path) -> None:
    asked: list[str] = []

    def judge(window: Window) -> Judgement:
        asked.append(window.name)
        return Judgement(np.full((1, 2), len(asked), np.float32), (1, 2))

    first = keep_in(tmp_path / "kept", "a", judge)(windows[0])
    again = keep_in(tmp_path / "kept", "a", judge)(windows[0])
    assert asked == [windows[0].name]
    assert np.array_equal(first.logits, again.logits)
    assert first.greedy_ids == again.greedy_ids
    keep_in(tmp_path / "kept", "a", judge)(windows[1])
    keep_in(tmp_path / "kept", "b", judge)(windows[0])
    assert len(asked) == 3
