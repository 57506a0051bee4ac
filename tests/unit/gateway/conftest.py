"""Tokenizers to check text against: the default model's, and others built here in a moment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.contract.default_model import default_model_folder
from services.gateway.text.detokenizer import TokenTable
from services.gateway.text.output_text import OutputRules, OutputText

CORPUS = (
    "The capital of France is Paris. I said <end> of the line; she said nothing at all.",
    "我很高兴 ďábelské ไทย 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇿 žluťoučký kůň úpěl",
    "ABC DEF GHI JKL the theme of them then there 1 22 333",
) * 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The library's tokenizer and ours of the same definition."""

    name: str
    library: Tokenizer
    table: TokenTable

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.library.decode(list(ids), skip_special_tokens=skip_special_tokens)


def vocabulary_of(name: str, tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(name, tokenizer, TokenTable.from_definition(tokenizer.to_str().encode()))


def byte_level() -> Tokenizer:
    """GPT-2's kind: every byte is in the alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("žluť", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama 2's kind: spaces are ▁, unknown characters fall back to <0x..>, the text's first space goes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁The", "▁a", "a", "b", "c", "é", "我", "▁我", "▁b▁", "<0xZZ>"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """T5's kind: Unigram pieces, the first token loses its ▁."""
    pieces = ["<unk>", "</s>", "▁", "▁▁", "▁The", "▁a", "a", "b", "é", "我", "▁我", "b▁c"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def default_model() -> Tokenizer:
    definition = default_model_folder() / "tokenizer.json"
    if not definition.exists():
        pytest.skip("the default model is not here; python -m services.contract.default_model fetches it")
    return Tokenizer.from_file(str(definition))


BUILDERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
    "default_model": default_model,
}


@pytest.fixture(scope="session", params=BUILDERS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    """Each kind in turn."""
    return vocabulary_of(request.param, BUILDERS[request.param]())


@pytest.fixture(scope="session", params=["byte_level", "default_model"])
def any_text(request: pytest.FixtureRequest) -> Vocabulary:
    """Vocabularies that can spell every text."""
    return vocabulary_of(request.param, BUILDERS[request.param]())


OpenOutput = Callable[..., OutputText]


@pytest.fixture
def open_output(any_text: Vocabulary) -> OpenOutput:
    """Opens an output after no prompt; rules by keyword."""

    def open_(prompt_ids: Sequence[int] = (), max_tokens: int = 1000, **rules: object) -> OutputText:
        return OutputText(any_text.table, prompt_ids, OutputRules(max_tokens=max_tokens, **rules))  # type: ignore[arg-type]

    return open_


@pytest.fixture(scope="session")
def byte_fallback_vocabulary() -> Vocabulary:
    return vocabulary_of("byte_fallback", byte_fallback())
