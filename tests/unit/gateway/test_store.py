"""What every store promises; each promise alone, since turns lean on several at once."""

import pytest

from services.gateway.history.store.memory import MemoryStore
from services.gateway.history.store.protocol import LeaseOwner, Store, StoreFull

KEY, OTHER = b"key", b"other"
OWNER, NEXT_ATTEMPT, STRANGER = LeaseOwner("r", 0), LeaseOwner("r", 1), LeaseOwner("s", 5)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock) -> Store:
    return MemoryStore(clock, ttl_s=100.0, lease_s=30.0, max_records_per_group=2)


async def test_a_record_is_added_once(store):
    revision = await store.add(KEY, "g", b"1")
    assert await store.add(KEY, "g", b"2") is None
    record = await store.get(KEY)
    assert (record.value, record.revision) == (b"1", revision)


async def test_replacing_needs_the_last_revision(store):
    first = await store.add(KEY, "g", b"1")
    second = await store.replace(KEY, b"2", first, OWNER)
    assert second not in (None, first)
    assert await store.replace(KEY, b"3", first, OWNER) is None
    assert (await store.get(KEY)).value == b"2"
    assert await store.replace(OTHER, b"3", second, OWNER) is None


async def test_replacing_needs_that_nobody_else_has_the_lease(store, clock):
    revision = await store.add(KEY, "g", b"1")
    await store.acquire(KEY, STRANGER)
    assert await store.replace(KEY, b"2", revision, OWNER) is None
    clock.now += 30
    assert await store.replace(KEY, b"2", revision, OWNER) is not None


async def test_a_revision_does_not_come_back_with_a_new_record(store):
    revision = await store.add(KEY, "g", b"1")
    assert await store.delete(KEY)
    assert not await store.delete(KEY)
    await store.add(KEY, "g", b"1")
    assert await store.replace(KEY, b"2", revision, OWNER) is None


async def test_a_lease_is_held_taken_over_and_given_back(store):
    assert await store.acquire(KEY, OWNER) is None
    assert await store.acquire(KEY, OWNER) == OWNER
    assert await store.acquire(KEY, STRANGER) == OWNER
    assert await store.acquire(KEY, NEXT_ATTEMPT) is None
    assert await store.acquire(KEY, OWNER) == NEXT_ATTEMPT
    assert not await store.renew(KEY, OWNER)
    await store.release(KEY, OWNER)
    assert await store.renew(KEY, NEXT_ATTEMPT)
    await store.release(KEY, NEXT_ATTEMPT)
    assert not await store.renew(KEY, NEXT_ATTEMPT)
    assert await store.acquire(KEY, STRANGER) is None


async def test_a_lease_runs_out_unless_renewed(store, clock):
    await store.acquire(KEY, OWNER)
    await store.acquire(OTHER, OWNER)
    clock.now += 29
    assert await store.renew(KEY, OWNER)
    clock.now += 29
    assert await store.acquire(KEY, STRANGER) == OWNER
    assert await store.acquire(OTHER, STRANGER) is None
    clock.now += 1
    assert await store.acquire(KEY, STRANGER) is None


@pytest.mark.parametrize("use", ["get", "replace", "renew"])
async def test_every_use_lets_a_record_live_on(store, clock, use):
    revision = await store.add(KEY, "g", b"1")
    await store.add(OTHER, "g", b"1")
    clock.now += 99
    if use == "get":
        await store.get(KEY)
    elif use == "replace":
        await store.replace(KEY, b"2", revision, OWNER)
    else:
        await store.acquire(KEY, OWNER)
        await store.renew(KEY, OWNER)
    clock.now += 99
    assert await store.get(OTHER) is None
    assert await store.get(KEY) is not None
    clock.now += 100
    assert await store.get(KEY) is None


async def test_a_full_group_gives_up_its_least_recently_used_idle_record(store):
    for key in (KEY, OTHER):
        await store.add(key, "g", b"1")
    await store.get(KEY)
    await store.add(b"third", "g", b"1")
    assert await store.get(OTHER) is None
    await store.acquire(KEY, OWNER)
    await store.acquire(b"third", OWNER)
    with pytest.raises(StoreFull):
        await store.add(b"fourth", "g", b"1")
    assert await store.add(b"fourth", "h", b"1") is not None
