"""The frozen vocabulary, twice: one tokenizer that reads control tokens and one that cannot.

Two objects, never a flag flipped on a shared one. Knows no templates, caches or requests.
"""

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.tokenizer.token_bytes import TokenBytes
from services.tokenizer.windows import WINDOW_CHARS, Offsets, Window, windows


class VocabularyError(Exception):
    """The definition cannot be used. One short cause."""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token: text that spells it means it only where a template wrote it."""

    id: int
    content: str
    eats_left: bool
    """It swallows white space in front of it."""
    eats_right: bool


@dataclass(frozen=True, slots=True)
class RunText:
    """Text between two control tokens."""

    text: str
    is_head: bool
    """True if nothing stands in front of it; some vocabularies mark the beginning of a text."""


@dataclass(frozen=True, slots=True)
class ControlSpan:
    """Where a control token stands in a literal, in characters."""

    start: int
    end: int
    token: ControlToken


class Vocabulary:
    """Text to ids and back. Safe for many threads, since nothing in it changes after the constructor."""

    def __init__(self, definition: bytes, barrier: str) -> None:
        """`barrier` is a text that no caller can guess: it stands for "a control token was here".

        Raises VocabularyError.
        """
        spec = _parse(definition)
        self._full = _build(spec)
        self._plain = _build_plain(spec, self._full, barrier)
        self._barrier = barrier
        added = self._full.get_added_tokens_decoder()
        self.controls: Mapping[int, ControlToken] = {
            token_id: ControlToken(token_id, token.content, token.lstrip, token.rstrip)
            for token_id, token in added.items()
        }
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.prefix_ids, self.suffix_ids = _post_processor_ids(self._full)
        self.token_bytes = TokenBytes.of(spec, self._full, self.special_ids)
        self.size = self.token_bytes.size

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Both objects, for the check that neither truncates nor pads."""
        return self._full, self._plain

    def encode_runs(self, runs: Sequence[RunText]) -> list[Sequence[int]]:
        """Ids of each run; control tokens that it spells stay text. A long one goes through windows."""
        short = iter(self._encode_short([run for run in runs if len(run.text) <= WINDOW_CHARS]))
        return [next(short) if len(run.text) <= WINDOW_CHARS else self._encode_long(run) for run in runs]

    def _encode_short(self, runs: Sequence[RunText]) -> list[list[int]]:
        encodings = self._plain.encode_batch_fast(
            [run.text if run.is_head else self._barrier + run.text for run in runs], add_special_tokens=False
        )
        return [
            encoding.ids if run.is_head else encoding.ids[1:]
            for run, encoding in zip(runs, encodings, strict=True)
        ]

    def _encode_long(self, run: RunText) -> "array[int]":
        def encode(text: str, is_head: bool) -> tuple[list[int], Offsets]:
            return self.encode_run_with_offsets(RunText(text, is_head))

        return _joined(windows(encode, run.text, run.is_head))

    def encode_run_with_offsets(self, run: RunText) -> tuple[list[int], Offsets]:
        """Ids of one run and each id's range in run.text."""
        if run.is_head:
            encoding = self._plain.encode(run.text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        encoding = self._plain.encode(self._barrier + run.text, add_special_tokens=False)
        shift = len(self._barrier)
        return encoding.ids[1:], [(start - shift, end - shift) for start, end in encoding.offsets[1:]]

    def encode_trusted(self, text: str) -> "array[int]":
        """Ids of a rendered prompt whose control tokens are all the template's own."""
        return _joined(windows(self._encode_full, text, True))

    def find_controls(self, literal: str) -> list[ControlSpan]:
        """Control tokens in a text, as the library itself matches them, in order."""
        return [
            ControlSpan(window.start + start, window.start + end, self.controls[token_id])
            for window in windows(self._encode_full, literal, True)
            for token_id, (start, end) in zip(window.ids, window.offsets, strict=True)
            if token_id in self.controls
            and end > start
            and self._spells(literal[window.start + start : window.start + end], token_id)
        ]

    def _encode_full(self, text: str, is_head: bool) -> tuple[list[int], Offsets]:
        """The library takes every text for a beginning; where that shows, `windows` finds no seam."""
        encoding = self._full.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _spells(self, text: str, token_id: int) -> bool:
        # An unknown-token id also comes from text that the vocabulary lacks.
        return self.controls[token_id].content.strip().lower() in text.lower()


def _parse(definition: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(definition)
    except ValueError as error:
        raise VocabularyError("is not valid JSON") from error
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise VocabularyError("holds no tokenizer model")
    return spec


def _build(spec: Mapping[str, Any]) -> Tokenizer:
    """The library's own truncation and padding are never switched on, whatever the file says."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
    except Exception as error:  # the library raises nothing narrower
        raise VocabularyError(f"is refused by the tokenizer library ({error})") from error
    assert tokenizer.truncation is None and tokenizer.padding is None
    return tokenizer


def _build_plain(spec: Mapping[str, Any], full: Tokenizer, barrier: str) -> Tokenizer:
    contents = [token.content for token in full.get_added_tokens_decoder().values()]
    plain = _build(
        {**spec, "added_tokens": [], "post_processor": None, "model": _hide(spec["model"], contents, barrier)}
    )
    plain.add_special_tokens([AddedToken(barrier, special=True, normalized=False)])
    return plain


def _hide(model: Mapping[str, Any], contents: Sequence[str], barrier: str) -> dict[str, Any]:
    """The model with control tokens' entries under names that no text can spell; every id stays where it was.

    Without this a unigram or whole-word lookup would still find "</s>" in a caller's text.
    """
    # A single character may be the only way to write itself.
    hidden = {content: f"{barrier}{content}" for content in contents if len(content) > 1}
    renamed = dict(model)
    vocab = model.get("vocab", {})
    if isinstance(vocab, dict):
        renamed["vocab"] = {hidden.get(piece, piece): token_id for piece, token_id in vocab.items()}
    else:
        renamed["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") in hidden and model["unk_token"] in vocab:
        renamed["unk_token"] = hidden[model["unk_token"]]
    if "merges" in model:
        renamed["merges"] = [merge for merge in model["merges"] if not _touches(merge, hidden)]
    return renamed


def _touches(merge: str | Sequence[str], hidden: Mapping[str, str]) -> bool:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in hidden or right in hidden or left + right in hidden


def _post_processor_ids(full: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts in front of and behind a raw text."""
    with_ids: list[int] = full.encode("a", add_special_tokens=True).ids
    bare: list[int] = full.encode("a", add_special_tokens=False).ids
    for start in range(len(with_ids) - len(bare) + 1):
        if with_ids[start : start + len(bare)] == bare:
            return tuple(with_ids[:start]), tuple(with_ids[start + len(bare) :])
    raise VocabularyError("has a post-processor that rewrites the text's ids")


def _joined(parts: Iterator[Window]) -> "array[int]":
    ids = array("I")
    for window in parts:
        ids.extend(window.ids)
    return ids
