"""Names of full KV blocks: each hash covers its block's ids and, through its parent, everything before them.

The same on every process and in every language; it depends on no hash seed of the interpreter.
"""

import hashlib
import struct
from collections.abc import Sequence

ROOT = bytes(16)
"""Parent of a sequence's first block."""

HASH_BYTES = 16

STRIDE = 16
"""Ids that one hash covers where a block is a multiple of it: blocks of 256 and of 16 share names."""


def block_hash(parent: bytes, salt: bytes, revision_digest: bytes, ids: Sequence[int]) -> bytes:
    """BLAKE2b-128 over parent (16 bytes), salt, SHA-256 of the revision (32 bytes), ids (u32 LE).

    Ids of a larger block are hashed 16 by 16, each the parent of the next, and the last is the block's name.
    """
    assert len(parent) == HASH_BYTES and len(revision_digest) == 32, (len(parent), len(revision_digest))
    stride = STRIDE if len(ids) % STRIDE == 0 else len(ids)
    for start in range(0, len(ids), stride):
        part = ids[start : start + stride]
        content = b"".join((parent, salt, revision_digest, struct.pack(f"<{len(part)}I", *part)))
        parent = hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
    return parent


def digest_revision(revision: str) -> bytes:
    """SHA-256 of the revision string, 32 bytes."""
    return hashlib.sha256(revision.encode()).digest()


def block_hashes(ids: Sequence[int], block_size: int, salt: bytes, revision: str) -> list[bytes]:
    """Hashes of the full blocks of ids, from block 0 on; a last block that is not full has no name."""
    digest = digest_revision(revision)
    hashes: list[bytes] = []
    parent = ROOT
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = block_hash(parent, salt, digest, ids[start : start + block_size])
        hashes.append(parent)
    return hashes
