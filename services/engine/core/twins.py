"""Which sequence computes which block just now, so that one with the same beginning can wait for it."""

from collections import Counter
from collections.abc import Iterable


class Twins:
    """Owners of blocks under computation, and how many live sequences expect a block."""

    def __init__(self) -> None:
        self._owner_of: dict[bytes, int] = {}
        self._num_expecting: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._owner_of) + len(self._num_expecting)

    def owner(self, block_hash: bytes) -> int | None:
        """The sequence that computes the block."""
        return self._owner_of.get(block_hash)

    def register(self, block_hash: bytes, sequence_id: int) -> None:
        """The first to compute a block owns it."""
        self._owner_of.setdefault(block_hash, sequence_id)

    def unregister(self, block_hash: bytes, sequence_id: int) -> None:
        if self._owner_of.get(block_hash) == sequence_id:
            del self._owner_of[block_hash]

    def expect(self, block_hashes: Iterable[bytes]) -> None:
        """A live sequence will hold these blocks."""
        self._num_expecting.update(block_hashes)

    def is_expected(self, block_hash: bytes) -> bool:
        return block_hash in self._num_expecting

    def unexpect(self, block_hashes: Iterable[bytes]) -> None:
        for block_hash in block_hashes:
            self._num_expecting[block_hash] -= 1
            if self._num_expecting[block_hash] <= 0:
                del self._num_expecting[block_hash]
