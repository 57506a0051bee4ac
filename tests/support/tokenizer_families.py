"""Tokenizers of the three families with chat templates, and a whole encoding pipeline on any of them."""

import json
from collections.abc import AsyncIterator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.lru import Lru
from services.tokenizer.outline import Piece, cut_at_controls
from services.tokenizer.plans import Plans
from services.tokenizer.prompt import Conversation, Turn
from services.tokenizer.prompt_encoder import Chat, PromptEncoder
from services.tokenizer.run_encoder import Ids, RunEncoder
from services.tokenizer.survey import Survey, survey
from services.tokenizer.template_source import TemplateSource
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.vocabulary import RunText, Vocabulary

MARK = "\ufdd0test mark:"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ZEPHYR = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
    "{% endfor %}{{ '<|assistant|>\n' }}"
)
TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CORPUS = [
    "The quick brown fox jumps over the lazy dog 12 times, and 345 more.\n",
    "user system assistant tool: what is the capital of France? Paris is the capital of France.\n\n",
    "  indented code:\n\tfor i in range(10):\n\t\tprint(i)   # spaces\n",
    "naïve café, Straße, ďábelské, 我很高兴, ไทย\n",
] * 20


@dataclass(frozen=True)
class Family:
    """A vocabulary with a template that fits it."""

    name: str
    definition: bytes
    source: TemplateSource


def byte_level() -> Family:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=specials
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.add_tokens(["<tool>"])  # added, but not special
    return Family("byte-level", tokenizer.to_str().encode(), TemplateSource(CHATML, TOKENS))


def _with_bytes(tokenizer: Tokenizer) -> dict[str, object]:
    """The definition with byte fallback, as SentencePiece models are converted."""
    spec: dict[str, dict[str, object]] = json.loads(tokenizer.to_str())
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):
        vocab += [[piece, -30.0] for piece in pieces]
    elif isinstance(vocab, dict):
        vocab |= {piece: len(vocab) + n for n, piece in enumerate(pieces)}
    spec["model"]["byte_fallback"] = True
    return dict(spec)


def _finish_sentencepiece(name: str, spec: dict[str, object], *, strips: bool) -> Family:
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    roles = [AddedToken(f"<|{role}|>", special=True, rstrip=strips) for role in ("user", "assistant", "tool")]
    tokenizer.add_special_tokens([*roles, AddedToken("<|system|>", special=True, rstrip=strips)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Family(name, tokenizer.to_str().encode(), TemplateSource(ZEPHYR, TOKENS))


def unigram() -> Family:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish_sentencepiece("unigram", _with_bytes(tokenizer), strips=False)


def llama_bpe() -> Family:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish_sentencepiece("llama-bpe", _with_bytes(tokenizer), strips=True)


def template_of(source: TemplateSource) -> ChatTemplate:
    """A template whose date stands still."""
    return ChatTemplate(source.text, source.variables, lambda pattern: "26 Jul 2024")


def plan(template: ChatTemplate, vocabulary: Vocabulary, roles: Sequence[str]) -> Sequence[Piece]:
    """The pieces of a pattern."""
    parts = template.outline(roles, MARK).parts
    assert parts is not None
    return cut_at_controls(parts, vocabulary.find_controls)


@dataclass(frozen=True)
class Pipeline:
    """A prompt encoder and what it stands on."""

    encoder: PromptEncoder
    vocabulary: Vocabulary
    worker: TemplateWorker
    found: Survey
    lookups: dict[str, list[int]]


@asynccontextmanager
async def open_pipeline(
    family: Family, vocabulary: Vocabulary, template: str | None = None, cache_bytes: int = 1 << 20
) -> AsyncIterator[Pipeline]:
    """A pipeline with a template process of its own."""
    source = TemplateSource(template or family.source.text, family.source.variables)
    worker = TemplateWorker(source, time_limit_s=5)
    await worker.start()
    with ThreadPoolExecutor(4) as threads:
        try:
            yield await _pipeline(vocabulary, worker, threads, cache_bytes)
        finally:
            await worker.stop()


async def _pipeline(
    vocabulary: Vocabulary, worker: TemplateWorker, threads: ThreadPoolExecutor, cache_bytes: int
) -> Pipeline:
    lookups = {"segment": [0, 0], "exact": [0, 0]}

    def note_segment(hits: int, misses: int) -> None:
        lookups["segment"][0] += hits
        lookups["segment"][1] += misses

    def note_exact(is_hit: bool) -> None:
        lookups["exact"][not is_hit] += 1

    segments: Lru[RunText, Ids] = Lru(cache_bytes)
    exact: Lru[Hashable, Ids] = Lru(cache_bytes)
    plans = Plans(vocabulary, worker, MARK)
    found = await survey(vocabulary, plans, worker)
    encoder = PromptEncoder(
        vocabulary=vocabulary,
        runs=RunEncoder(vocabulary, threads, threads, segments, note_segment),
        chat=Chat(plans, worker, found.is_append_only, found.has_safe_seams),
        cache=exact,
        note_lookup=note_exact,
        mark=MARK,
    )
    return Pipeline(encoder, vocabulary, worker, found, lookups)


def talk(*turns: tuple[str, str]) -> Conversation:
    """A conversation of (role, content)."""
    return Conversation(tuple(Turn(role, content) for role, content in turns), "conversation.segments")
