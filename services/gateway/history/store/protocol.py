"""What a store of sessions can do. Values are bytes; a store knows nothing of what they mean."""

from dataclasses import dataclass
from typing import Protocol


class StoreUnavailable(Exception):
    """The store cannot answer now."""


class StoreFull(Exception):
    """The group has as many records as it may, all of them in use."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value and the mark of its last change."""

    value: bytes
    revision: int
    """Never the same for two values of one key."""


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """Who holds a lease. A higher attempt of the same request may take it over."""

    request_id: str
    client_attempt: int


class Store(Protocol):
    """Records that expire unless used, and leases on them. Every method may raise StoreUnavailable."""

    async def get(self, key: bytes) -> Record | None:
        """The record, which counts as its use."""

    async def add(self, key: bytes, group: str, value: bytes) -> int | None:
        """Makes a record and returns its revision, None if there is one. Raises StoreFull.

        A group is bounded: its least recently used record without a lease makes room.
        """

    async def replace(self, key: bytes, value: bytes, revision: int, owner: LeaseOwner) -> int | None:
        """Compare-and-set: the new revision.

        None if the record is gone or changed, or if somebody else has the lease.
        """

    async def delete(self, key: bytes) -> bool:
        """Erases a record; False if there was none."""

    async def acquire(self, key: bytes, owner: LeaseOwner) -> LeaseOwner | None:
        """Takes the lease for the store's lease time: None, or else who has it and keeps it."""

    async def renew(self, key: bytes, owner: LeaseOwner) -> bool:
        """Begins the lease's time anew, a use of the record as well; False if the owner does not have it."""

    async def release(self, key: bytes, owner: LeaseOwner) -> None:
        """Gives the lease back if it is still the owner's."""
