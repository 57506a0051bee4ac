"""The torch executor against transformers, on tiny models of every family, however the work is cut up."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.contract.model_folder import ModelFolderError, open_model_folder
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.step import NULL_BLOCK, PLACEHOLDER, Row, SamplingSpec, SequenceSpec
from tests.support.executor_driver import GREEDY, ExecutorDriver
from tests.support.tiny_models import EMBEDDING_SIZE, VARIANTS, VOCAB_SIZE, make_tiny_model, random_ids
from tests.support.transformers_oracle import TransformersOracle

ALL_LOGPROBS = SamplingSpec(temperature=0.0, logprobs=VOCAB_SIZE)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        name: make_tiny_model(base / name.replace(" ", "-"), family, **changes)
        for name, (family, changes) in VARIANTS.items()
    }


@pytest.fixture(scope="module", params=list(VARIANTS))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture(scope="module")
def llama(folders: dict[str, Path]) -> Path:
    return folders["llama"]


def make_executor(folder: Path, **options: Any) -> TorchExecutor:
    executor = TorchExecutor(open_model_folder(folder), TorchOptions(**options))
    executor.load()
    return executor


def make_driver(folder: Path, seed: int = 0, **options: Any) -> ExecutorDriver:
    return ExecutorDriver(make_executor(folder, **options), seed=seed)


def test_logprobs_equal_transformers_at_every_position(folder: Path) -> None:
    ids = random_ids(60)
    driver, oracle = make_driver(folder), TransformersOracle(folder)
    expected = oracle.logits(ids)[:, :VOCAB_SIZE].double().log_softmax(dim=1)
    for end in (1, 2, 15, 16, 17, 33, 60):
        driven = driver.add(ids[:end], ALL_LOGPROBS)
        driver.generate([driven], 1, chunk=23)
        logprobs = driven.outputs[0].logprobs
        assert logprobs is not None
        got = torch.tensor(logprobs[0].values[1:], dtype=torch.float64)
        order = torch.tensor(logprobs[0].ids[1:])
        assert (expected[end - 1, order] - got).abs().max() < 1e-4
        driver.finish(driven)


def test_variants_of_one_model_really_differ(folders: dict[str, Path]) -> None:
    """Else the test above would not see a forgotten RoPE scaling or window."""
    ids = random_ids(60)
    last = {name: TransformersOracle(path).logits(ids)[-1] for name, path in folders.items()}
    assert (last["llama"] - last["llama3 rope"]).abs().max() > 0.1
    assert (last["llama"] - last["linear rope"]).abs().max() > 0.1
    assert (last["mistral"] - last["mistral window"]).abs().max() > 0.1


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 64])
def test_greedy_ids_equal_transformers_batched_and_chunked(folder: Path, chunk: int) -> None:
    driver, oracle = make_driver(folder, seed=chunk), TransformersOracle(folder)
    batch = [driver.add(random_ids(length, seed=length)) for length in (1, 16, 17, 45)]
    driver.generate(batch, 12, chunk=chunk)
    verdicts = [oracle.judge(one.ids, one.num_prompt_tokens, VOCAB_SIZE) for one in batch]
    assert [verdict.wrong for verdict in verdicts] == [()] * len(batch)
    assert sum(verdict.num_ties for verdict in verdicts) == 0


def test_alone_batched_warm_and_resumed_draw_the_same_ids(folder: Path) -> None:
    driver = make_driver(folder)
    prompts = [random_ids(length, seed=length) for length in (5, 40, 100, 129)]
    alone = [driver.add(prompt) for prompt in prompts]
    for one in alone:
        driver.generate([one], 10)
    together = [driver.add(prompt) for prompt in prompts]
    driver.generate(together, 10)
    warm = [driver.add(prompt, prefix_of=one) for prompt, one in zip(prompts, alone, strict=True)]
    assert [one.num_computed for one in warm] == [0, 32, 96, 128]
    driver.generate(warm, 10)
    resumed = [driver.add(one.ids[:-4], num_prompt_tokens=one.num_prompt_tokens) for one in alone]
    driver.generate(resumed, 10, chunk=17)
    expected = [one.drawn for one in alone]
    for others in (together, warm, resumed):
        assert [one.drawn for one in others] == expected


def test_seeded_draws_with_penalties_do_not_depend_on_neighbours_or_cache(llama: Path) -> None:
    driver = make_driver(llama)
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


def test_blocks_used_again_after_poison_change_nothing(llama: Path) -> None:
    driver = ExecutorDriver(make_executor(llama), num_blocks=14)
    prompt = random_ids(75)
    seen = []
    for _ in range(5):
        first, second = driver.add(prompt), driver.add(prompt[:30])
        driver.generate([first, second], 8, chunk=19)
        seen.append((first.drawn, second.drawn))
        driver.finish(first, second)
    assert seen == [seen[0]] * 5


@pytest.mark.parametrize("chunk", [7, 40])
def test_blocks_behind_the_window_may_be_taken_away(folders: dict[str, Path], chunk: int) -> None:
    """The null block is full of NaN here, and what is passed is poisoned and written by others."""
    executor = make_executor(folders["mistral window"])
    window = executor.load().window
    assert window == 20
    drawn = []
    for given in (window, None):
        driver = ExecutorDriver(executor, num_blocks=40, window=given)
        prompts = [driver.add(random_ids(count, seed=count)) for count in (3, 70, 150)]
        driver.generate(prompts, 40, chunk=chunk)
        drawn.append([one.drawn for one in prompts])
        assert all((NULL_BLOCK in one.block_ids) == (given is not None) for one in prompts)
        driver.finish(*prompts)
    assert drawn[0] == drawn[1]


def test_a_placeholder_stands_for_the_id_of_the_step_before(llama: Path) -> None:
    driver = make_driver(llama)
    expected = driver.add(random_ids(20))
    driver.generate([expected], 2)
    ahead = driver.add(random_ids(20))
    driver.step((ahead, 20))
    (output,) = driver.run_ahead(ahead)
    assert [*ahead.drawn, *output.ids] == expected.drawn


def test_a_row_with_nan_is_not_usable_and_its_neighbours_do_not_notice(llama: Path) -> None:
    executor = make_executor(llama)
    driver = ExecutorDriver(executor)
    good, bad = driver.add(random_ids(40)), driver.add(random_ids(40, seed=1))
    calm = driver.add(random_ids(40))
    driver.generate([calm], 3)
    driver.step((good, 40), (bad, 40))
    executor.poison([bad.block_ids[1]])
    outputs = driver.step((good, 1), (bad, 1))
    assert [output.is_usable for output in outputs] == [True, False]
    assert outputs[1].ids == ()
    driver.generate([good], 3)
    assert good.drawn == calm.drawn


def test_a_row_whose_placeholder_was_never_drawn_is_not_usable(llama: Path) -> None:
    """The step before ended the sequence after this row was planned; nothing raises, nothing is drawn."""
    executor = make_executor(llama)
    driver = ExecutorDriver(executor)
    good, ended = driver.add(random_ids(40)), driver.add(random_ids(20))
    rows = [
        Row(ended.sequence_id, tuple(ended.ids), 0, [1, 2], is_sampled=False),
        Row(ended.sequence_id, (PLACEHOLDER,), 20, [1, 2], is_sampled=True),
    ]
    assert executor.run(rows[:1]).outputs[0].is_usable
    (lost,) = executor.run(rows[1:]).outputs
    assert (lost.ids, lost.is_usable) == ((), False)
    driver.generate([good], 2)
    assert len(good.drawn) == 2


def test_a_chunk_with_nan_is_not_usable_before_it_is_sampled(llama: Path) -> None:
    executor = make_executor(llama)
    driver = ExecutorDriver(executor)
    driven = driver.add(random_ids(60))
    driver.step((driven, 20))
    executor.poison([driven.block_ids[0]])
    (output,) = driver.step((driven, 20))
    assert (output.ids, output.is_usable) == ((), False)


def test_padded_embedding_rows_are_never_drawn(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, tie_word_embeddings=False)
    executor = make_executor(folder)
    assert executor._decoder is not None
    executor._decoder._weights.head[VOCAB_SIZE:EMBEDDING_SIZE] *= 1000
    driver = ExecutorDriver(executor)
    batch = [driver.add(random_ids(9, seed=n), SamplingSpec(temperature=t)) for n, t in enumerate((0.0, 5.0))]
    driver.generate(batch, 30)
    assert all(max(one.drawn) < VOCAB_SIZE for one in batch)


def test_bfloat16_stays_near_float32(llama: Path) -> None:
    values = []
    for dtype in ("float32", "bfloat16"):
        driver = make_driver(llama, dtype=dtype)
        driven = driver.add(random_ids(50), ALL_LOGPROBS)
        driver.generate([driven], 1)
        logprobs = driven.outputs[0].logprobs
        assert logprobs is not None
        values.append(dict(zip(logprobs[0].ids, logprobs[0].values, strict=True)))
    assert max(abs(values[0][i] - values[1][i]) for i in range(VOCAB_SIZE)) < 0.5
    assert values[0] != values[1]


def test_the_spec_says_what_the_engine_needs(llama: Path) -> None:
    executor = TorchExecutor(open_model_folder(llama), TorchOptions(max_model_len=100_000))
    spec = executor.load()
    assert (spec.vocab_size, spec.max_model_len, spec.row_invariant) == (VOCAB_SIZE, 512, False)
    assert spec.bytes_per_block == 2 * 3 * 2 * 16 * 16 * 4
    executor.unload()


def test_removed_sequences_are_forgotten(llama: Path) -> None:
    executor = make_executor(llama)
    executor.add(SequenceSpec(1, (5,), 1, GREEDY))
    executor.remove(1)
    assert executor._states == {}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "RoPE type 'yarn' is not supported"),
        ({"quantization_config": {"bits": 4}}, "weights are quantized"),
        ({"num_hidden_layers": 4}, "has no tensor model.layers.3.input_layernorm.weight"),
        ({"intermediate_size": 97}, "config.json says [97, 48]"),
        ({"hidden_size": None}, "config.json lacks a usable"),
    ],
)
def test_a_model_that_cannot_be_computed_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    folder = open_model_folder(make_tiny_model(tmp_path))
    broken = type(folder)(
        folder.path,
        folder.revision,
        {**folder.config, **changes},
        folder.eos_ids,
        folder.vocab_size,
        folder.weights,
    )
    with pytest.raises(ModelFolderError) as caught:
        TorchExecutor(broken, TorchOptions()).load()
    assert cause in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_attention_backend_is_refused(llama: Path) -> None:
    with pytest.raises(ModelFolderError, match="attention backend 'magic' is unknown"):
        make_executor(llama, attention="magic")
