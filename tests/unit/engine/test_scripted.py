"""The scripted executor: forced ids, faults on order, and a KV cache that notices a wrong block."""

import json
import os
from pathlib import Path

import pytest

from services.engine.executors.script import ScriptError, read_script
from services.engine.executors.scripted import ScriptedExecutor, ScriptedFaultError
from services.engine.step import Row, RowOutput, SamplingSpec, SequenceSpec
from tests.support.engine_driver import write_script

IDS = tuple(range(20))


def executor_of(path: Path) -> ScriptedExecutor:
    executor = ScriptedExecutor(path)
    executor.load()
    executor.allocate(20)
    return executor


def add(executor: ScriptedExecutor, sequence_id: int, ids: tuple[int, ...] = IDS, **sampling: object) -> None:
    spec = SamplingSpec(temperature=0.0, **sampling)  # type: ignore[arg-type]
    executor.add(SequenceSpec(sequence_id, ids, len(ids), spec))


def run(executor: ScriptedExecutor, *rows: Row) -> list[RowOutput]:
    return list(executor.run(rows).outputs)


def test_chunks_and_shuffled_blocks_draw_what_one_chunk_draws(tmp_path: Path) -> None:
    executor = executor_of(write_script(tmp_path / "s.json"))
    add(executor, 1)
    add(executor, 2)
    whole = run(executor, Row(1, IDS, 0, (1, 2), True))[0]
    assert run(executor, Row(2, IDS[:7], 0, (9,), False))[0].ids == ()
    parts = run(executor, Row(2, IDS[7:], 7, (9, 4), True))[0]
    assert whole.ids == parts.ids and whole.is_usable and parts.is_usable


def test_a_wrong_or_poisoned_block_does_not_go_unnoticed(tmp_path: Path) -> None:
    executor = executor_of(write_script(tmp_path / "s.json"))
    logprobs = []
    for sequence_id, blocks in ((1, (1, 2)), (2, (3, 4)), (3, (5, 6))):
        add(executor, sequence_id, logprobs=3)
        run(executor, Row(sequence_id, IDS[:18], 0, blocks, False))
    add(executor, 4, tuple(reversed(IDS)))
    run(executor, Row(4, tuple(reversed(IDS))[:18], 0, (7, 8), False))
    for sequence_id, blocks in ((1, (1, 2)), (2, (7, 4))):
        output = run(executor, Row(sequence_id, IDS[18:], 18, blocks, True))[0]
        assert output.logprobs is not None
        logprobs.append(output.logprobs)
    assert logprobs[0] != logprobs[1]
    executor.poison([5])
    assert not run(executor, Row(3, IDS[18:], 18, (5, 6), True))[0].is_usable


def test_forced_ids_come_in_their_order_with_logprobs_of_their_own(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "s.json", {"prompt_ids": list(IDS), "output_ids": [5, 6, 7], "ids_per_step": 2}
    )
    executor = executor_of(path)
    add(executor, 1, logprobs=1)
    first = run(executor, Row(1, IDS, 0, (1, 2), True))[0]
    assert first.ids == (5, 6) and first.logprobs is not None
    assert [drawn.ids[0] for drawn in first.logprobs] == [5, 6]
    assert run(executor, Row(1, (6,), 21, (1, 2), True))[0].ids == (7,)
    add(executor, 2, (1, 2))
    assert run(executor, Row(2, (1, 2), 0, (3,), True))[0].ids not in ((5,), (5, 6))


def test_faults_come_where_the_script_says(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "s.json",
        {"prompt_ids": [1], "raise_at": 0},
        {"prompt_ids": [2], "nan_at": 0},
    )
    executor = executor_of(path)
    add(executor, 1, (1,))
    add(executor, 2, (2,))
    with pytest.raises(ScriptedFaultError):
        run(executor, Row(2, (2,), 0, (1,), True), Row(1, (1,), 0, (2,), True))
    assert not run(executor, Row(2, (2,), 0, (1,), True))[0].is_usable


def test_the_script_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = write_script(tmp_path / "s.json", {"output_ids": [5]})
    executor = executor_of(path)
    add(executor, 1)
    write_script(path, {"output_ids": [6]})
    os.utime(path, ns=(1, 1))
    add(executor, 2)
    outputs = run(executor, Row(1, IDS, 0, (1, 2), True), Row(2, IDS, 0, (3, 4), True))
    assert [output.ids for output in outputs] == [(5,), (6,)]


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"scripts": [{"output_ids": "x"}]})])
def test_what_is_no_script_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(ScriptError, match=r"s\.json: not a script"):
        read_script(path)
    with pytest.raises(ScriptError, match="No such file"):
        read_script(tmp_path / "none.json")
