"""Ids to text, one id at a time, from a tokenizer's definition (the library's tokenizer.json).

The text is decode(prompt + output) minus decode(prompt). O(1) per id; only an unfinished character is held
back; each maximal invalid part becomes one U+FFFD. Needs no model folder and knows nothing of stop texts.
"""

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

_REPLACEMENT_CHARACTER = "\ufffd"
_LONGEST_UNFINISHED = 3
"""Bytes of a UTF-8 character that can wait for its last."""

_PRINTABLE = tuple(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
_BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + i): byte for i, byte in enumerate(b for b in range(256) if b not in _PRINTABLE)
}
"""GPT-2's byte map, backwards: printable bytes stand for themselves, the others are moved up from U+0100."""


class UnsupportedTokenizer(Exception):
    """The definition has a decoder that cannot be turned into bytes per id."""


@dataclass(frozen=True, slots=True)
class _Decoder:
    """A definition's decoder, understood: bytes of a token, and what happens only at the text's start."""

    bytes_of: Callable[[str], bytes]
    dropped_in_first: str = ""
    """Character that the first token loses (Metaspace)."""
    strip: bytes = b""
    """One ASCII character that the text loses at its start."""


class TokenTable:
    """Bytes of every id of one vocabulary. Immutable; shared by all choices."""

    def __init__(self, tokens: Mapping[int, str], special_ids: frozenset[int], decoder: _Decoder) -> None:
        self.vocab_size = max(tokens, default=-1) + 1
        self.special_ids = special_ids
        self.decoder = decoder
        self._pieces: list[bytes | None] = [None] * self.vocab_size
        for token_id, token in tokens.items():
            self._pieces[token_id] = decoder.bytes_of(token)
        mark = decoder.dropped_in_first
        self._first_pieces = {
            token_id: decoder.bytes_of(token.replace(mark, ""))
            for token_id, token in tokens.items()
            if mark and mark in token
        }

    @classmethod
    def from_definition(cls, definition: bytes) -> Self:
        """Reads a tokenizer.json. Raises UnsupportedTokenizer, naming the part that is not supported."""
        document = json.loads(definition)
        added = document.get("added_tokens") or []
        tokens = _model_tokens(document["model"]) | {entry["id"]: entry["content"] for entry in added}
        special = {entry["content"] for entry in added if entry["special"]}
        special_ids = frozenset(token_id for token_id, token in tokens.items() if token in special)
        return cls(tokens, special_ids, _read_decoder(document.get("decoder")))

    def piece(self, token_id: int) -> bytes | None:
        """Bytes of an id, None if the vocabulary has no such id (it decodes to nothing)."""
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else None

    def first_piece(self, token_id: int) -> bytes | None:
        """Bytes of an id that is the first of a text."""
        return self._first_pieces.get(token_id, self.piece(token_id))


class Detokenizer:
    """Text of one output, whose prompt is known."""

    def __init__(self, table: TokenTable, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._table = table
        self._hidden_ids = table.special_ids if skip_special_tokens else frozenset()
        self._has_token = False
        self._to_strip = table.decoder.strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_prompt_character_open = self._start_after(prompt_ids)

    def push(self, token_id: int) -> str:
        """Text that becomes certain with one more id."""
        return self._drop_prompt_character(self._decoder.decode(self._next_bytes(token_id)))

    def flush(self) -> str:
        """Text of a character that stays unfinished: U+FFFD or nothing. Nothing may follow."""
        return self._drop_prompt_character(self._decoder.decode(b"", final=True))

    def copy(self) -> "Detokenizer":
        """An independent detokenizer in the same state."""
        twin = Detokenizer(self._table, (), False)
        twin._hidden_ids = self._hidden_ids
        twin._has_token = self._has_token
        twin._to_strip = self._to_strip
        twin._decoder.setstate(self._decoder.getstate())
        twin._is_prompt_character_open = self._is_prompt_character_open
        return twin

    def _start_after(self, prompt_ids: Sequence[int]) -> bool:
        """Brings the state to the prompt's end; says whether the prompt ends within a character."""
        for token_id in prompt_ids:
            self._next_bytes(token_id)
            if self._has_token and not self._to_strip:
                break
        self._decoder.decode(self._tail(prompt_ids))
        return bool(self._decoder.getstate()[0])

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """Bytes at the prompt's end, enough to hold any unfinished character."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._hidden_ids:
                tail = (self._table.piece(token_id) or b"") + tail
            if len(tail) >= _LONGEST_UNFINISHED:
                break
        return tail

    def _next_bytes(self, token_id: int) -> bytes:
        if token_id in self._hidden_ids:
            return b""
        piece = self._table.piece(token_id) if self._has_token else self._table.first_piece(token_id)
        if piece is None:
            return b""
        self._has_token = True
        if piece and self._to_strip:
            piece, self._to_strip = piece.removeprefix(self._to_strip), b""
        return piece

    def _drop_prompt_character(self, text: str) -> str:
        """A character that the prompt began and the output breaks is U+FFFD of the prompt."""
        if not self._is_prompt_character_open or not text:
            return text
        self._is_prompt_character_open = False
        return text.removeprefix(_REPLACEMENT_CHARACTER)


def _model_tokens(model: Mapping[str, Any]) -> dict[int, str]:
    """Tokens by id: a mapping for BPE and word models, pairs of token and score for Unigram."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return {token_id: token for token, token_id in vocab.items()}
    return {token_id: token for token_id, (token, _) in enumerate(vocab)}


def _read_decoder(decoder: Mapping[str, Any] | None) -> _Decoder:
    """Accepts text replacements, then one kind of bytes, then a strip of the fused text; refuses all else."""
    replacements: list[tuple[str, str]] = []
    to_bytes: Callable[[str], bytes] | None = None
    dropped_in_first, strip, is_fused = "", b"", False
    for step in _flatten(decoder):
        is_text = to_bytes is None and not is_fused
        match step:
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if is_text:
                replacements.append((pattern, content))
            case {"type": "ByteLevel"} if is_text:
                to_bytes, is_fused = _byte_level_bytes, True
            case {"type": "ByteFallback"} if is_text:
                to_bytes = _byte_fallback_bytes
            case {"type": "Metaspace", "replacement": mark} if is_text:
                replacements.append((mark, " "))
                to_bytes = str.encode
                dropped_in_first = mark if _prepends(step) else ""
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": str(content), "start": 1, "stop": 0} if (
                is_fused and not strip and content.isascii() and len(content) == 1
            ):
                strip = content.encode()
            case _:
                raise UnsupportedTokenizer(f"decoder step {step.get('type')!r} is not supported here")
    return _Decoder(_reader(replacements, to_bytes or str.encode), dropped_in_first, strip)


def _flatten(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        raise UnsupportedTokenizer("the tokenizer has no decoder")
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _flatten(step)


def _prepends(metaspace: Mapping[str, Any]) -> bool:
    if "prepend_scheme" in metaspace:
        return bool(metaspace["prepend_scheme"] != "never")
    return bool(metaspace.get("add_prefix_space", True))


def _reader(
    replacements: Sequence[tuple[str, str]], to_bytes: Callable[[str], bytes]
) -> Callable[[str], bytes]:
    def read(token: str) -> bytes:
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return to_bytes(token)

    return read


def _byte_level_bytes(token: str) -> bytes:
    """A token with a character outside the byte map stands for itself, as the library has it."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_fallback_bytes(token: str) -> bytes:
    """`<0x0A>` is one byte; everything else is text."""
    if len(token.encode()) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.encode()
