"""The store of a single gateway: its records die with the process. The clock is passed in."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.history.store.protocol import LeaseOwner, Record, StoreFull

TTL_S = 30 * 60.0
LEASE_S = 30.0
MAX_RECORDS_PER_GROUP = 1024


@dataclass(slots=True)
class _Entry:
    group: str
    record: Record
    expires_s: float


@dataclass(frozen=True, slots=True)
class _Lease:
    owner: LeaseOwner
    expires_s: float


class MemoryStore:
    """All times to live are equal, so the order of use is the order of expiry."""

    def __init__(
        self,
        clock: Callable[[], float],
        ttl_s: float = TTL_S,
        lease_s: float = LEASE_S,
        max_records_per_group: int = MAX_RECORDS_PER_GROUP,
    ) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._lease_s = lease_s
        self._max_records_per_group = max_records_per_group
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._groups: dict[str, OrderedDict[bytes, None]] = {}
        self._leases: OrderedDict[bytes, _Lease] = OrderedDict()
        self._last_revision = 0

    def __len__(self) -> int:
        self._expire()
        return len(self._entries)

    @property
    def num_leases(self) -> int:
        """Leases that are held."""
        self._expire()
        return len(self._leases)

    async def get(self, key: bytes) -> Record | None:
        """See Store."""
        self._expire()
        entry = self._use(key)
        return None if entry is None else entry.record

    async def add(self, key: bytes, group: str, value: bytes) -> int | None:
        """See Store."""
        self._expire()
        if key in self._entries:
            return None
        self._make_room(group)
        self._entries[key] = _Entry(group, self._next_record(value), 0.0)
        self._groups.setdefault(group, OrderedDict())[key] = None
        self._use(key)
        return self._last_revision

    async def replace(self, key: bytes, value: bytes, revision: int, owner: LeaseOwner) -> int | None:
        """See Store."""
        self._expire()
        entry, lease = self._entries.get(key), self._leases.get(key)
        is_taken = lease is not None and lease.owner != owner
        if entry is None or entry.record.revision != revision or is_taken:
            return None
        entry.record = self._next_record(value)
        self._use(key)
        return self._last_revision

    async def delete(self, key: bytes) -> bool:
        """See Store."""
        self._expire()
        return self._remove(key)

    async def acquire(self, key: bytes, owner: LeaseOwner) -> LeaseOwner | None:
        """See Store."""
        self._expire()
        lease = self._leases.get(key)
        if lease is not None and not _takes_over(owner, lease.owner):
            return lease.owner
        self._hold(key, owner)
        return None

    async def renew(self, key: bytes, owner: LeaseOwner) -> bool:
        """See Store."""
        self._expire()
        lease = self._leases.get(key)
        if lease is None or lease.owner != owner:
            return False
        self._hold(key, owner)
        self._use(key)
        return True

    async def release(self, key: bytes, owner: LeaseOwner) -> None:
        """See Store."""
        lease = self._leases.get(key)
        if lease is not None and lease.owner == owner:
            del self._leases[key]

    def _expire(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).expires_s <= now:
            self._remove(next(iter(self._entries)))
        while self._leases and next(iter(self._leases.values())).expires_s <= now:
            self._leases.popitem(last=False)

    def _use(self, key: bytes) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.expires_s = self._clock() + self._ttl_s
            self._entries.move_to_end(key)
            self._groups[entry.group].move_to_end(key)
        return entry

    def _hold(self, key: bytes, owner: LeaseOwner) -> None:
        self._leases[key] = _Lease(owner, self._clock() + self._lease_s)
        self._leases.move_to_end(key)

    def _make_room(self, group: str) -> None:
        keys = self._groups.get(group, OrderedDict())
        if len(keys) < self._max_records_per_group:
            return
        idle = next((key for key in keys if key not in self._leases), None)
        if idle is None:
            raise StoreFull(f"at most {self._max_records_per_group} records, all in use")
        self._remove(idle)

    def _remove(self, key: bytes) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        keys = self._groups[entry.group]
        del keys[key]
        if not keys:
            del self._groups[entry.group]
        return True

    def _next_record(self, value: bytes) -> Record:
        self._last_revision += 1
        return Record(value, self._last_revision)


def _takes_over(new: LeaseOwner, old: LeaseOwner) -> bool:
    return new.request_id == old.request_id and new.client_attempt > old.client_attempt
