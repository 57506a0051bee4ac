"""The default model itself: its tokenizer, its answer, the torch executor against transformers in fp32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.contract.default_model import fetch_default_model
from services.contract.model_folder import open_model_folder
from services.engine.executors.native_executor import NativeExecutor, NativeOptions
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.native.build import find_library
from services.engine.step import SamplingSpec
from tests.support.executor_driver import ExecutorDriver
from tests.support.transformers_oracle import TransformersOracle

PROMPTS = (
    "x",
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper who finds a letter. " * 4,
    "List the first prime numbers: 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, "
    * 3,
)
NUM_TOKENS = 24
VOCAB_SIZE = 49_152


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_default_model()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> TransformersOracle:
    return TransformersOracle(folder)


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[ExecutorDriver]:
    executor = TorchExecutor(open_model_folder(folder), TorchOptions())
    executor.load()
    yield ExecutorDriver(executor, num_blocks=160)
    executor.unload()


def test_every_digit_is_a_token_and_no_bos_is_added(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer("x  5").tokens() == ["x", "ĠĠ", "5"]
    assert tokenizer("1234").tokens() == ["1", "2", "3", "4"]
    assert tokenizer("").input_ids == []


def test_the_folder(folder: Path) -> None:
    opened = open_model_folder(folder)
    assert (opened.vocab_size, opened.eos_ids) == (VOCAB_SIZE, {2})
    names = {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    }
    assert names <= {file.name for file in folder.iterdir()}


def test_the_answer(driver: ExecutorDriver, tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": PROMPTS[1]}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    driven = driver.add(ids)
    driver.generate([driven], 8)
    assert tokenizer.decode(driven.drawn) == "The capital of France is Paris.<|im_end|>"
    driver.finish(driven)


@pytest.mark.parametrize("chunk", [17, 300])
def test_greedy_ids_equal_transformers(
    driver: ExecutorDriver, oracle: TransformersOracle, tokenizer: PreTrainedTokenizerFast, chunk: int
) -> None:
    """Batched, chunked, on shuffled blocks, then warm on the blocks of the first."""
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    cold = [driver.add(prompt) for prompt in prompts]
    driver.generate(cold, NUM_TOKENS, chunk)
    warm = [driver.add(prompt, prefix_of=one) for prompt, one in zip(prompts, cold, strict=True)]
    assert sum(one.num_computed for one in warm) > 0
    driver.generate(warm, NUM_TOKENS, chunk)
    verdicts = [oracle.judge(one.ids, one.num_prompt_tokens, VOCAB_SIZE) for one in (*cold, *warm)]
    num_ties = sum(verdict.num_ties for verdict in verdicts)
    print(f"{num_ties} ties in {sum(verdict.num_tokens for verdict in verdicts)} tokens")
    assert [verdict.wrong for verdict in verdicts] == [()] * len(verdicts)
    assert num_ties <= 1
    driver.finish(*warm, *cold)


def test_logprobs_equal_transformers(
    driver: ExecutorDriver, oracle: TransformersOracle, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = tokenizer(PROMPTS[2]).input_ids
    driven = driver.add(ids, SamplingSpec(temperature=0.0, logprobs=VOCAB_SIZE))
    driver.generate([driven], 1, chunk=16)
    assert driven.outputs[0].logprobs is not None
    (got,) = driven.outputs[0].logprobs
    expected = oracle.logits(ids)[-1].double().log_softmax(0)[list(got.ids)]
    assert (expected - torch.tensor(got.values, dtype=torch.float64)).abs().max() < 1e-4
    driver.finish(driven)


def test_4_bit_weights_come_from_its_gguf_without_a_second_loss(folder: Path) -> None:
    """Kept in 4 bits they give, bit by bit, what they give as the bf16 values that they stand for."""
    logprobs = {}
    for weights in ("plain", "int4"):
        executor = NativeExecutor(open_model_folder(folder), find_library(), NativeOptions(weights=weights))
        executor.load()
        driver = ExecutorDriver(executor, num_blocks=16)
        driven = driver.add(range(100, 140), SamplingSpec(temperature=0.0, logprobs=1000))
        driver.generate([driven], 4)
        logprobs[weights] = [output.logprobs for output in driven.outputs]
        executor.unload()
    assert logprobs["int4"] == logprobs["plain"]
