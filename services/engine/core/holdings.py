"""The blocks that sequences hold: hits, growth, indexing, giving back. Knows no order of service."""

from services.contract.block_hash import ROOT, block_hash
from services.engine.core.admission import CachePolicy
from services.engine.core.limits import Limits
from services.engine.core.prefix_cache import PrefixCache
from services.engine.core.sequence import Sequence
from services.engine.core.twins import Twins
from services.engine.step import NULL_BLOCK


class Holdings:
    """Keeps each sequence's block table in step with its counters.

    A *claim* is what the known ids of a live sequence will still take; admissions leave it alone.
    """

    def __init__(self, cache: PrefixCache, limits: Limits) -> None:
        self.cache = cache
        self.block_size = limits.block_size
        self._window = limits.window
        self._max_window_blocks = limits.max_window_blocks
        self.twins = Twins()
        self.num_claimed = 0

    def claim(self, sequence: Sequence, num_blocks: int) -> None:
        self.num_claimed += num_blocks - sequence.num_claimed_blocks
        sequence.num_claimed_blocks = num_blocks

    def known_blocks(self, sequence: Sequence) -> int:
        """Blocks that the known ids need at once."""
        return min(-(-len(sequence.token_ids) // self.block_size), self._max_window_blocks)

    def needed_blocks(self, sequence: Sequence) -> int:
        """Blocks an admission would take from free and cached ones; what others hold costs nothing."""
        needed = -(-len(sequence.token_ids) // self.block_size)
        if sequence.admission.cache_policy is CachePolicy.BYPASS:
            return min(needed, self._max_window_blocks)
        for name in sequence.block_hashes[: (len(sequence.token_ids) - 1) // self.block_size]:
            block_id = self.cache.lookup(name)
            is_expected = self.twins.is_expected(name)
            if block_id is None and not is_expected:
                break
            if is_expected or (block_id is not None and self.cache.pool.is_used(block_id)):
                needed -= 1
        return min(needed, self._max_window_blocks)

    def enter(self, sequence: Sequence, num_needed: int) -> None:
        """A sequence was admitted."""
        self.claim(sequence, num_needed)
        if sequence.admission.cache_policy is CachePolicy.USE:
            self.twins.expect(self._admitted_hashes(sequence))

    def leave(self, sequence: Sequence, now_us: int) -> list[int]:
        """A sequence is over; what it indexed stays cached. Returns the blocks now free."""
        if sequence.admission.cache_policy is CachePolicy.USE:
            self.twins.unexpect(self._admitted_hashes(sequence))
        freed = self._give_back(sequence, now_us)
        self.claim(sequence, 0)
        return freed

    def preempt(self, sequence: Sequence, now_us: int) -> list[int]:
        """A sequence starts over; what it indexed stays cached. Returns the blocks now free."""
        freed = self._give_back(sequence, now_us)
        sequence.epoch += 1
        self.claim(sequence, self.known_blocks(sequence))
        return freed

    def take_hits(self, sequence: Sequence) -> int:
        """Moves over computed blocks, never over the last id. Returns how many ids were found."""
        if sequence.admission.cache_policy is CachePolicy.BYPASS:
            return 0
        before = sequence.num_planned
        while (name := self._next_hash(sequence)) is not None:
            block_id = self.cache.lookup(name)
            if block_id is None:
                break
            was_used = self.cache.pool.is_used(block_id)
            self.cache.acquire(block_id)
            if sequence.num_indexed_blocks == len(sequence.block_ids):
                sequence.num_indexed_blocks += 1
            self._append(sequence, block_id, is_claimed=not was_used)
            sequence.num_planned += self.block_size
        return sequence.num_planned - before

    def pass_window(self, sequence: Sequence, now_us: int) -> list[int]:
        """Gives blocks back that no later position sees, once they were offered to the index.

        Steps in flight may still read them: they run before the step in which others write there. Returns the
        blocks now free.
        """
        if self._window is None:
            return []
        num_behind = max(0, sequence.num_planned - self._window + 1) // self.block_size
        first, end = sequence.num_passed_blocks, min(num_behind, sequence.num_indexed_blocks)
        if first >= end:
            return []
        freed = self.cache.release(sequence.block_ids[first:end], now_us, sequence.admission.retention)
        sequence.block_ids[first:end] = [NULL_BLOCK] * (end - first)
        sequence.block_table = ()
        sequence.num_passed_blocks = end
        return freed

    def twin_of(self, sequence: Sequence) -> int | None:
        """The other sequence that computes the next block just now."""
        if sequence.admission.cache_policy is CachePolicy.BYPASS:
            return None
        name = self._next_hash(sequence)
        owner = self.twins.owner(name) if name is not None else None
        return None if owner == sequence.sequence_id else owner

    def extend(self, sequence: Sequence, num_positions: int, now_us: int) -> bool:
        """Allocates until the table covers the positions; false if blocks ran short."""
        while len(sequence.block_ids) * self.block_size < num_positions:
            block_id = self.cache.allocate(now_us)
            if block_id is None:
                return False
            self._append(sequence, block_id, is_claimed=True)
        return True

    def register(self, sequence: Sequence, end: int) -> None:
        """Tells twins which full known blocks are under computation, positions up to `end` being planned."""
        if sequence.admission.cache_policy is not CachePolicy.USE:
            return
        last = min(-(-end // self.block_size), len(sequence.block_hashes))
        for index in range(max(sequence.num_registered_blocks, sequence.num_indexed_blocks), last):
            self.twins.register(sequence.block_hashes[index], sequence.sequence_id)
        sequence.num_registered_blocks = max(sequence.num_registered_blocks, last)

    def index(self, sequence: Sequence, num_computed: int) -> None:
        """Offers the full blocks among `num_computed` positions, computed and finite, to the cache."""
        for number in range(sequence.num_indexed_blocks, num_computed // self.block_size):
            name = self._hash_of(sequence, number)
            if sequence.admission.cache_policy is CachePolicy.USE:
                self.twins.unregister(name, sequence.sequence_id)
                if self.cache.insert(name, sequence.block_ids[number]):
                    sequence.inserted_hashes.append(name)
            sequence.num_indexed_blocks = number + 1

    def settle(self, sequence: Sequence) -> None:
        """The known ids have their blocks: nothing is claimed any more."""
        if sequence.num_claimed_blocks:
            self.claim(sequence, 0)

    def _admitted_hashes(self, sequence: Sequence) -> list[bytes]:
        return sequence.block_hashes[: len(sequence.admission.ids) // self.block_size]

    def _append(self, sequence: Sequence, block_id: int, is_claimed: bool) -> None:
        sequence.block_ids.append(block_id)
        if is_claimed and sequence.num_claimed_blocks:
            self.claim(sequence, sequence.num_claimed_blocks - 1)

    def _next_hash(self, sequence: Sequence) -> bytes | None:
        """The hash of the block that starts at the next position, if it may be a hit."""
        number, offset = divmod(sequence.num_planned, self.block_size)
        if offset or len(sequence.block_ids) != number:
            return None
        if sequence.num_planned + self.block_size >= sequence.num_known:
            return None
        return self._hash_of(sequence, number)

    def _hash_of(self, sequence: Sequence, number: int) -> bytes:
        """Hash of a full block of existing ids, derived as the sequence grows."""
        names = sequence.block_hashes
        size = self.block_size
        while len(names) <= number:
            ids = sequence.token_ids[len(names) * size : (len(names) + 1) * size]
            parent = names[-1] if names else ROOT
            names.append(block_hash(parent, sequence.admission.cache_salt, sequence.revision_digest, ids))
        return names[number]

    def _give_back(self, sequence: Sequence, now_us: int) -> list[int]:
        for number in range(sequence.num_indexed_blocks, sequence.num_registered_blocks):
            self.twins.unregister(sequence.block_hashes[number], sequence.sequence_id)
        freed = self.cache.release(sequence.held_block_ids, now_us, sequence.admission.retention)
        sequence.block_ids.clear()
        sequence.num_passed_blocks = 0
        sequence.block_table = ()
        sequence.num_planned = 0
        sequence.num_indexed_blocks = 0
        sequence.num_registered_blocks = 0
        return freed
