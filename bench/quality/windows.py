"""What is scored: prompts and answers of several kinds, alone or after material of 500 or 2,000 tokens.

Knows the corpus and the tokenizer, no model.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer

CORPUS = Path(__file__).parent / "corpus"
KINDS = ("question", "summary", "code", "translation", "digits", "chinese")
OWN_MATERIAL = frozenset({"code", "digits", "chinese"})
"""Kinds whose long prompts stand after a text of their own; the others after prose."""
GROUPS: Mapping[str, int] = MappingProxyType({"short": 0, "500+": 500, "2000+": 2000})
"""Tokens of material."""
SAMPLES_PER_KIND: Mapping[str, slice] = MappingProxyType(
    {"short": slice(0, 3), "500+": slice(3, 5), "2000+": slice(5, 7)}
)
STRIDE = 7
"""Windows of one kind begin their material so many tokens apart."""


@dataclass(frozen=True, slots=True)
class Window:
    """One prompt and the answer that is forced after it."""

    name: str
    kind: str
    group: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


def read_windows(model_folder: Path, max_answer_tokens: int) -> list[Window]:
    """All windows of the corpus, by group and kind."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    samples = tomllib.loads((CORPUS / "samples.toml").read_text())["samples"]
    return [
        _window(
            tokenizer=tokenizer,
            kind=kind,
            group=group,
            index=index,
            sample=sample,
            max_answer_tokens=max_answer_tokens,
        )
        for group, chosen in SAMPLES_PER_KIND.items()
        for kind in KINDS
        for index, sample in enumerate([it for it in samples if it["kind"] == kind][chosen])
    ]


def _window(
    *,
    tokenizer: Tokenizer,
    kind: str,
    group: str,
    index: int,
    sample: Mapping[str, str],
    max_answer_tokens: int,
) -> Window:
    opening = _encode(tokenizer, "<|im_start|>user\n")
    asked = f"{sample['prompt']}<|im_end|>\n<|im_start|>assistant\n"
    if GROUPS[group]:
        asked = f"\n\n{asked}"
    material = _material(tokenizer, kind, GROUPS[group], index * STRIDE)
    return Window(
        name=f"{kind} {group} {index + 1}",
        kind=kind,
        group=group,
        prompt_ids=(*opening, *material, *_encode(tokenizer, asked)),
        answer_ids=tuple(_encode(tokenizer, sample["answer"])[:max_answer_tokens]),
    )


def _material(tokenizer: Tokenizer, kind: str, num_tokens: int, start: int) -> Sequence[int]:
    if num_tokens == 0:
        return ()
    ids = _encode(tokenizer, (CORPUS / f"{kind if kind in OWN_MATERIAL else 'prose'}.txt").read_text())
    assert len(ids) >= start + num_tokens, (kind, len(ids))
    return ids[start : start + num_tokens]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
