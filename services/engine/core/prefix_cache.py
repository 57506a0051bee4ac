"""The index of computed full blocks by hash, and which of them yields first when blocks run short.

Knows hashes and block ids, not the ids behind them; callers insert only what was computed and found finite.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.engine.core.block_pool import BlockPool


@dataclass(slots=True)
class _Session:
    """Blocks that one session wants to outlive others; no reference."""

    expires_us: int
    block_ids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Retention:
    """A session's wish for its blocks after their last use."""

    session_key: bytes
    ttl_us: int


class PrefixCache:
    """Blocks of the pool, handed out and taken back; what is indexed stays cached until it is evicted."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.num_evictions = 0
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._plain: OrderedDict[int, None] = OrderedDict()
        self._retained: OrderedDict[int, None] = OrderedDict()
        self._sessions: dict[bytes, _Session] = {}
        self._session_of: dict[int, bytes] = {}
        self._next_expiry_us: int | None = None

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free ones and cached ones."""
        return self.pool.num_free + self.pool.num_cached

    def lookup(self, block_hash: bytes) -> int | None:
        return self._block_of.get(block_hash)

    def acquire(self, block_id: int) -> None:
        """One more holder of an indexed block."""
        if self.pool.is_used(block_id):
            self.pool.share(block_id)
            return
        self.pool.take_cached(block_id)
        self._plain.pop(block_id, None)
        self._retained.pop(block_id, None)

    def allocate(self, now_us: int) -> int | None:
        """A block to write to; a cached one is evicted if none is free."""
        if self.pool.num_free == 0 and not self._evict(now_us):
            return None
        return self.pool.take_free()

    def insert(self, block_hash: bytes, block_id: int) -> bool:
        """Indexes a used block; false if the hash or the block is indexed already."""
        if block_hash in self._block_of or block_id in self._hash_of:
            return False
        assert self.pool.is_used(block_id), block_id
        self._block_of[block_hash] = block_id
        self._hash_of[block_id] = block_hash
        return True

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Takes blocks out of the index, their content being suspect; who holds them keeps them."""
        for block_hash in block_hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                continue
            self._unindex(block_id)
            if not self.pool.is_used(block_id):
                self._plain.pop(block_id, None)
                self._retained.pop(block_id, None)
                self.pool.uncache(block_id)

    def release(self, block_ids: list[int], now_us: int, retention: Retention | None = None) -> list[int]:
        """Gives blocks back, last first, so that a prefix outlives its sequel. Returns those now free."""
        session = self._touch(retention, now_us) if retention else None
        freed: list[int] = []
        for block_id in reversed(block_ids):
            is_indexed = block_id in self._hash_of
            if session is not None and retention is not None and is_indexed:
                self._retain(block_id, retention.session_key, session)
            if not self.pool.release(block_id, keep_cached=is_indexed):
                continue
            if not is_indexed:
                freed.append(block_id)
            else:
                (self._retained if block_id in self._session_of else self._plain)[block_id] = None
        if session is not None and retention is not None and not session.block_ids:
            del self._sessions[retention.session_key]
        return freed

    def release_retention(self, session_key: bytes) -> None:
        """The session's cached blocks are now the first to yield."""
        session = self._sessions.pop(session_key, None)
        for block_id in session.block_ids if session else ():
            del self._session_of[block_id]
            if block_id in self._retained:
                del self._retained[block_id]
                self._plain[block_id] = None
                self._plain.move_to_end(block_id, last=False)

    def check(self) -> None:
        """Asserts every invariant of pool and index; costs O(blocks)."""
        cached = [*self._plain, *self._retained]
        self.pool.check(cached)
        assert all(block_id in self._hash_of for block_id in cached), cached
        assert {block: name for name, block in self._block_of.items()} == self._hash_of
        assert all(block_id in self._hash_of for block_id in self._session_of), self._session_of

    def _evict(self, now_us: int) -> bool:
        self._expire(now_us)
        order = self._plain or self._retained
        if not order:
            return False
        block_id, _ = order.popitem(last=False)
        self._unindex(block_id)
        self.pool.uncache(block_id)
        self.num_evictions += 1
        return True

    def _expire(self, now_us: int) -> None:
        if self._next_expiry_us is None or now_us < self._next_expiry_us:
            return
        for key in [key for key, session in self._sessions.items() if session.expires_us <= now_us]:
            self.release_retention(key)
        self._next_expiry_us = min((session.expires_us for session in self._sessions.values()), default=None)

    def _unindex(self, block_id: int) -> None:
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is None:
            return
        del self._block_of[block_hash]
        key = self._session_of.pop(block_id, None)
        if key is not None:
            self._drop_from_session(block_id, key)

    def _touch(self, retention: Retention, now_us: int) -> _Session:
        session = self._sessions.setdefault(retention.session_key, _Session(now_us))
        session.expires_us = now_us + retention.ttl_us
        self._next_expiry_us = min(self._next_expiry_us or session.expires_us, session.expires_us)
        return session

    def _retain(self, block_id: int, key: bytes, session: _Session) -> None:
        before = self._session_of.get(block_id)
        if before == key:
            return
        if before is not None:
            self._drop_from_session(block_id, before)
        session.block_ids.add(block_id)
        self._session_of[block_id] = key

    def _drop_from_session(self, block_id: int, key: bytes) -> None:
        session = self._sessions[key]
        session.block_ids.discard(block_id)
        if not session.block_ids:
            del self._sessions[key]
