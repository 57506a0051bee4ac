"""The tokenizer's definition, as gateways get it: tokenizer.json in pieces, named by its hash."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

PIECE_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class Definition:
    """The bytes and their hash."""

    content: bytes
    sha256: str

    @staticmethod
    def of(content: bytes) -> "Definition":
        """Names a content."""
        return Definition(content, hashlib.sha256(content).hexdigest())

    def pieces(self, have_sha256: str) -> Iterator[bytes]:
        """Pieces in order; one empty piece for a caller that has the current one."""
        if have_sha256 == self.sha256:
            yield b""
            return
        for start in range(0, len(self.content), PIECE_BYTES):
            yield self.content[start : start + PIECE_BYTES]
