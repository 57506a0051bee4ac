"""The native step on every usable path: near the torch oracle, and a row's bits depend on no other."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from services.contract.model_folder import open_model_folder
from services.engine.executors.native_executor import NativeExecutor
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.native.library import KernelPath, NativeError
from services.engine.step import NULL_BLOCK, PLACEHOLDER, Row, SamplingSpec
from tests.support.executor_driver import GREEDY, ExecutorDriver
from tests.support.native import MODELS, Logits, Watched, make_native, make_rounded_model, usable_paths
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model

ENDS = (1, 2, 15, 16, 17, 33, 60)
TOLERANCE = 0.025
"""Of the logits' root mean square. Rounding operands to bf16 costs about 0.012 in these models;
a forgotten RoPE scaling or window costs 0.5."""
INVARIANT_MODELS = ("llama", "mistral window", "qwen3", "heads of 80, one to a key")

MakeExecutor = Callable[..., NativeExecutor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {name: make_rounded_model(base / str(index), name) for index, name in enumerate(MODELS)}


@pytest.fixture(params=usable_paths(), ids=lambda path: path.name.lower())
def path(request: pytest.FixtureRequest) -> KernelPath:
    result: KernelPath = request.param
    return result


@pytest.fixture
def make(folders: dict[str, Path], path: KernelPath) -> Iterator[MakeExecutor]:
    made: list[NativeExecutor] = []

    def load(name: str = "llama", num_threads: int = 1) -> NativeExecutor:
        made.append(make_native(folders[name], path, num_threads=num_threads))
        return made[-1]

    yield load
    for executor in made:
        executor.unload()


def random_ids(count: int, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, VOCAB_SIZE) for _ in range(count)]


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2)))


def logits_at_ends(watched: Watched) -> Logits:
    rows = []
    for end in ENDS:
        driven = watched.driver.add(random_ids(end, seed=end))
        watched.driver.generate([driven], 1, chunk=23)
        rows.append(watched.logits(driven)[0])
        watched.driver.finish(driven)
    return np.stack(rows)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_near_the_torch_oracle(folders: dict[str, Path], name: str) -> None:
    oracle = TorchExecutor(open_model_folder(folders[name]), TorchOptions(attention="reference"))
    oracle.load()
    expected = logits_at_ends(Watched(oracle))
    for path in usable_paths():
        executor = make_native(folders[name], path)
        got = logits_at_ends(Watched(executor))
        executor.unload()
        assert rms(got - expected) < TOLERANCE * rms(expected), path.name


@pytest.mark.parametrize("name", INVARIANT_MODELS)
def test_a_row_has_the_same_bits_however_it_is_run(make: MakeExecutor, name: str) -> None:
    """Alone, chunked, beside 63 others and a prefill, behind cached blocks, resumed, on two threads."""
    watched = Watched(make(name))
    prompt = random_ids(77)
    alone = watched.driver.add(prompt)
    watched.driver.generate([alone], 6)
    expected = watched.logits(alone)
    for chunk in (1, 7, 16, 17, 64):
        assert_same(expected, watched, prompt, chunk=chunk)
    for num_others in (1, 15, 31, 63):
        others = [random_ids(1 + n % 19, seed=n) for n in range(num_others)]
        assert_same(expected, watched, prompt, others=others, chunk=33)
    assert_same(expected, watched, prompt, others=[random_ids(190)], chunk=50)
    warm = watched.driver.add(prompt, prefix_of=alone)
    assert warm.num_computed == 64
    watched.driver.generate([warm], 6)
    assert (watched.logits(warm) == expected).all()
    resumed = watched.driver.add(alone.ids[:-3], num_prompt_tokens=len(prompt))
    watched.driver.generate([resumed], 6)
    assert (watched.logits(resumed) == expected[3:]).all()
    other_blocks = Watched(make(name, num_threads=2), num_blocks=300, seed=5)
    assert_same(expected, other_blocks, prompt, others=[random_ids(20), random_ids(90)], chunk=40)


def assert_same(
    expected: Logits,
    watched: Watched,
    prompt: Sequence[int],
    others: Sequence[Sequence[int]] = (),
    chunk: int = 999,
) -> None:
    batch = [watched.driver.add(ids) for ids in (*others[::2], prompt, *others[1::2])]
    watched.driver.generate(batch, len(expected), chunk=chunk)
    assert (watched.logits(batch[(len(others) + 1) // 2]) == expected).all()
    watched.driver.finish(*batch)


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 1100}], ids=["all", "window"])
def test_contexts_longer_than_a_piece_of_attention(
    tmp_path: Path, path: KernelPath, changes: dict[str, int]
) -> None:
    folder = make_tiny_model(tmp_path, "mistral", max_position_embeddings=4096, **changes)
    oracle = TorchExecutor(open_model_folder(folder), TorchOptions(attention="reference"))
    oracle.load()
    prompt, got, judge = random_ids(2300), [], Watched(oracle)
    for num_threads, chunk in ((2, 2300), (3, 1000), (1, 513), (2, 333)):
        executor = make_native(folder, path, num_threads=num_threads)
        watched = Watched(executor)
        driven = watched.driver.add(prompt)
        watched.driver.generate([driven], 2, chunk=chunk)
        got.append(watched.logits(driven))
        executor.unload()
    driven = judge.driver.add(prompt)
    judge.driver.generate([driven], 1, chunk=512)
    assert all((logits == got[0]).all() for logits in got)
    assert rms(got[0][0] - judge.logits(driven)[0]) < 2 * TOLERANCE * rms(judge.logits(driven)[0])


def test_blocks_used_again_after_poison_change_nothing(make: MakeExecutor) -> None:
    watched = Watched(make(), num_blocks=14)
    prompt, seen = random_ids(75), []
    for _ in range(5):
        first, second = watched.driver.add(prompt), watched.driver.add(prompt[:30])
        watched.driver.generate([first, second], 8, chunk=19)
        seen.append((watched.logits(first), watched.logits(second)))
        watched.driver.finish(first, second)
    for one in seen:
        assert (one[0] == seen[0][0]).all() and (one[1] == seen[0][1]).all()


@pytest.mark.parametrize("chunk", [7, 40])
def test_blocks_behind_the_window_may_be_taken_away(make: MakeExecutor, chunk: int) -> None:
    """The null block is full of NaN here, and what is passed is poisoned and written by others."""
    executor = make("mistral window")
    window = executor.load().window
    assert window == 20
    seen = []
    for given in (window, None):
        watched = Watched(executor, num_blocks=40, window=given)
        prompts = [watched.driver.add(random_ids(count, seed=count)) for count in (3, 70, 150)]
        watched.driver.generate(prompts, 40, chunk=chunk)
        seen.append([watched.logits(one) for one in prompts])
        assert all((NULL_BLOCK in one.block_ids) == (given is not None) for one in prompts)
        watched.driver.finish(*prompts)
    assert all((freed == kept).all() for freed, kept in zip(*seen, strict=True))


def test_a_row_with_nan_is_not_usable_and_its_neighbours_do_not_notice(make: MakeExecutor) -> None:
    executor = make()
    watched = Watched(executor)
    good, bad, calm = (watched.driver.add(random_ids(40, seed=seed)) for seed in (0, 1, 0))
    watched.driver.generate([calm], 3)
    watched.driver.step((good, 40), (bad, 40))
    executor.poison([bad.block_ids[1]])
    outputs = watched.driver.step((bad, 1), (good, 1))
    assert [output.is_usable for output in outputs] == [False, True]
    assert outputs[0].ids == ()
    watched.driver.generate([good], 3)
    assert (watched.logits(good) == watched.logits(calm)).all()


def test_a_chunk_with_nan_is_not_usable_before_it_is_sampled(make: MakeExecutor) -> None:
    executor = make()
    driver = ExecutorDriver(executor)
    driven = driver.add(random_ids(60))
    driver.step((driven, 20))
    executor.poison([driven.block_ids[0]])
    (output,) = driver.step((driven, 20))
    assert (output.ids, output.is_usable) == ((), False)


def test_a_placeholder_stands_for_the_id_of_the_step_before(make: MakeExecutor) -> None:
    driver = ExecutorDriver(make())
    expected, ahead = driver.add(random_ids(20)), driver.add(random_ids(20))
    driver.generate([expected], 2)
    driver.step((ahead, 20))
    (output,) = driver.run_ahead(ahead)
    assert [*ahead.drawn, *output.ids] == expected.drawn


def test_a_row_whose_placeholder_was_never_drawn_is_not_usable(make: MakeExecutor) -> None:
    executor = make()
    driver = ExecutorDriver(executor)
    ended = driver.add(random_ids(20))
    rows = [
        Row(ended.sequence_id, tuple(ended.ids), 0, [1, 2], is_sampled=False),
        Row(ended.sequence_id, (PLACEHOLDER,), 20, [1, 2], is_sampled=True),
    ]
    assert executor.run(rows[:1]).outputs[0].is_usable
    (lost,) = executor.run(rows[1:]).outputs
    assert (lost.ids, lost.is_usable) == ((), False)


def test_a_greedy_draw_is_the_highest_logit(make: MakeExecutor) -> None:
    watched = Watched(make())
    batch = [watched.driver.add(random_ids(9, seed=seed)) for seed in range(8)]
    watched.driver.generate(batch, 12)
    for one in batch:
        assert watched.logits(one).argmax(axis=1).tolist() == one.drawn


def test_seeded_draws_with_penalties_do_not_depend_on_neighbours_or_cache(make: MakeExecutor) -> None:
    driver = ExecutorDriver(make())
    sampling = SamplingSpec(temperature=0.8, seed=42, repetition_penalty=1.3, presence_penalty=0.5, top_p=0.9)
    prompt = random_ids(50)
    alone = driver.add(prompt, sampling)
    driver.generate([alone], 20)
    batch = [
        driver.add(random_ids(7), SamplingSpec(seed=7)),
        driver.add(random_ids(90), GREEDY),
        driver.add(prompt, sampling, prefix_of=alone),
        driver.add(alone.ids[:-9], sampling, num_prompt_tokens=50),
    ]
    driver.generate(batch, 20, chunk=16)
    assert batch[2].drawn == batch[3].drawn == alone.drawn


def test_padded_embedding_rows_are_never_drawn(make: MakeExecutor) -> None:
    driver = ExecutorDriver(make())
    batch = [driver.add(random_ids(9, seed=n), SamplingSpec(temperature=t)) for n, t in enumerate((0.0, 5.0))]
    driver.generate(batch, 30)
    assert all(max(one.drawn) < VOCAB_SIZE for one in batch)


def test_the_spec_says_what_the_engine_needs(folders: dict[str, Path], path: KernelPath) -> None:
    executor = make_native(folders["llama"], path)
    spec = executor.load()
    assert (spec.name, spec.dtype, spec.kernel_path) == ("native", "bfloat16", path.name.lower())
    assert (spec.vocab_size, spec.max_model_len, spec.row_invariant) == (VOCAB_SIZE, 512, True)
    executor.unload()


def test_a_path_that_the_processor_lacks_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(NativeError, match="not usable here"):
        make_native(folders["llama"], max(KernelPath) + 1)  # type: ignore[arg-type]
