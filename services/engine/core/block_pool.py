"""The KV pool's blocks: who holds which, and which are free. Knows no ids, hashes or tensors.

free + used + cached = total at all times; block 0 is the null block and never handed out.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Sequence

from services.engine.step import NULL_BLOCK


def shuffled_block_ids(num_blocks: int, seed: int) -> list[int]:
    """Block ids 1..num_blocks-1 in an order given by the seed, so that no code can lean on neighbourhood."""

    def rank(block_id: int) -> bytes:
        return hashlib.blake2b(struct.pack("<QI", seed, block_id), digest_size=8).digest()

    return sorted(range(NULL_BLOCK + 1, num_blocks), key=rank)


class BlockPool:
    """Reference counts. A block with none is free, or cached if it was set aside under its hash."""

    def __init__(self, num_blocks: int, seed: int = 0) -> None:
        self.num_total = num_blocks - 1
        self._num_references = [0] * num_blocks
        self._free: deque[int] = deque(shuffled_block_ids(num_blocks, seed))
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_total - len(self._free) - self._num_cached

    def is_used(self, block_id: int) -> bool:
        return self._num_references[block_id] > 0

    def take_free(self) -> int | None:
        """A free block, now with one reference."""
        if not self._free:
            return None
        block_id = self._free.popleft()
        self._num_references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """One more reference to a used block."""
        assert self._num_references[block_id] > 0, block_id
        self._num_references[block_id] += 1

    def take_cached(self, block_id: int) -> None:
        """A cached block gets its first reference."""
        assert self._num_references[block_id] == 0, (block_id, self._num_references[block_id])
        self._num_cached -= 1
        self._num_references[block_id] = 1

    def release(self, block_id: int, keep_cached: bool) -> bool:
        """Drops one reference; true if it was the last, and the block is now cached or free."""
        assert self._num_references[block_id] > 0, block_id
        self._num_references[block_id] -= 1
        if self._num_references[block_id]:
            return False
        if keep_cached:
            self._num_cached += 1
        else:
            self._free.append(block_id)
        return True

    def uncache(self, block_id: int) -> None:
        """A cached block becomes free."""
        assert self._num_references[block_id] == 0, (block_id, self._num_references[block_id])
        self._num_cached -= 1
        self._free.append(block_id)

    def check(self, cached: Sequence[int]) -> None:
        """Asserts the invariant against the blocks that the owner of the index holds to be cached."""
        free = set(self._free)
        used = {block_id for block_id, count in enumerate(self._num_references) if count > 0}
        assert len(free) == len(self._free) and NULL_BLOCK not in free | used, (len(free), len(self._free))
        assert len(cached) == self._num_cached, (len(cached), self._num_cached)
        assert not free & used and not free & set(cached) and not used & set(cached), (free, used, cached)
        assert len(free) + len(used) + len(cached) == self.num_total, (len(free), len(used), len(cached))
