"""The bytes behind each id, and text from ids: every maximal invalid UTF-8 part is one U+FFFD.

Two families are known by their decoder: byte-level alphabets and SentencePiece marks with byte fallback.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MARK = "▁"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A table from id to bytes."""

    table: tuple[bytes, ...]
    special_ids: frozenset[int]
    drops_first_space: bool
    """SentencePiece marks the beginning of a text with a space that is not part of it."""
    longest: int
    """Bytes of the longest token."""

    @staticmethod
    def of(spec: Mapping[str, Any], tokenizer: Tokenizer, special_ids: frozenset[int]) -> "TokenBytes":
        """Reads the table from a definition and its tokenizer."""
        kinds = list(_decoder_kinds(spec.get("decoder")))
        is_byte_level = any(kind["type"] == "ByteLevel" for kind in kinds)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        table = [b""] * (max(vocab.values()) + 1)
        for token, token_id in vocab.items():
            if token_id in added:
                table[token_id] = added[token_id].content.encode()
            else:
                table[token_id] = _byte_level(token) if is_byte_level else _marked(token)
        drops_first_space = any(_drops_space(kind) for kind in kinds)
        return TokenBytes(tuple(table), special_ids, drops_first_space, max(map(len, table)))

    @property
    def size(self) -> int:
        """Ids in the vocabulary, added tokens included."""
        return len(self.table)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of ids that are all in the vocabulary."""
        if skip_special_tokens:
            ids = [token_id for token_id in ids if token_id not in self.special_ids]
        joined = b"".join(self.table[token_id] for token_id in ids)
        if self.drops_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", "replace")


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    nested = decoder.get("decoders")
    return [decoder] if nested is None else [kind for inner in nested for kind in _decoder_kinds(inner)]


def _drops_space(kind: Mapping[str, Any]) -> bool:
    if kind["type"] == "Metaspace":
        return bool(kind.get("prepend_scheme", "always") != "never")
    return bool(kind["type"] == "Strip" and kind.get("content") == " " and kind.get("start", 0) > 0)


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()


def _marked(token: str) -> bytes:
    match = _FALLBACK_BYTE.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_MARK, " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (openai/gpt-2, encoder.py)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_ALPHABET = _alphabet()
