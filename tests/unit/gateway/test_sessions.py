"""Turns of a session: one at a time, saved once, never another user's, and honest when the store is away."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.errors import MeshError, Reason
from services.gateway.access.identity import Tenant
from services.gateway.history.session import Session
from services.gateway.history.sessions import Sessions
from services.gateway.history.store.memory import MemoryStore
from services.gateway.history.store.protocol import LeaseOwner, StoreUnavailable
from services.gateway.spec.generation_spec import SessionTurn

ACME, GLOBEX = Tenant("acme", b"a" * 16), Tenant("globex", b"g" * 16)
KEY = b"k" * 32
FIRST, RETRY, SECOND = LeaseOwner("r1", 0), LeaseOwner("r1", 1), LeaseOwner("r2", 0)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Outage:
    """A store that can be away."""

    def __init__(self, store):
        self._store = store
        self.is_away = False

    def __getattr__(self, name):
        if self.is_away:
            raise StoreUnavailable(name)
        return getattr(self._store, name)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def memory(clock):
    return MemoryStore(clock)


@pytest.fixture
def store(memory):
    return Outage(memory)


@pytest.fixture
def sessions(store):
    numbers = itertools.count()
    return Sessions(store, KEY, lambda: f"s{next(numbers)}")


@pytest.fixture
async def session_id(sessions):
    return await sessions.open(ACME, "u", "m")


async def begin(sessions, session_id, owner=FIRST, *, user_id="u", tenant=ACME, model="m", **fields):
    return await sessions.begin_turn(tenant, SessionTurn(session_id, user_id, **fields), owner, model)


async def take_turn(sessions, session_id, owner, ids, num_prompt_tokens, **fields):
    lease = await begin(sessions, session_id, owner, **fields)
    return await sessions.commit(lease, ids, num_prompt_tokens, "engine-1")


async def refusal_of(awaitable):
    with pytest.raises(MeshError) as refusal:
        await awaitable
    return refusal.value


async def test_each_turn_follows_the_last(sessions, session_id):
    lease = await begin(sessions, session_id)
    assert (lease.session.version, lease.history) == (0, ())
    assert await sessions.commit(lease, [1, 2, 3], 2, "engine-1") == 1
    lease = await begin(sessions, session_id, SECOND, expect_version=1)
    assert (lease.session.version, lease.history) == (1, (1, 2, 3))
    assert lease.session.last_engine_id == "engine-1"


@pytest.mark.parametrize(
    "other",
    [{"tenant": GLOBEX}, {"user_id": "v"}, {"user_id": ""}],
)
async def test_another_users_session_is_not_found_and_not_disturbed(sessions, memory, session_id, other):
    assert (await refusal_of(begin(sessions, session_id, **other))).reason is Reason.UNKNOWN_SESSION
    assert memory.num_leases == 0
    tenant, user_id = other.get("tenant", ACME), other.get("user_id", "u")
    released = await refusal_of(sessions.release(tenant, user_id, session_id))
    assert released.reason is Reason.UNKNOWN_SESSION
    running = await begin(sessions, session_id)
    assert (await refusal_of(begin(sessions, session_id, SECOND, **other))).reason is Reason.UNKNOWN_SESSION
    assert await sessions.commit(running, [1], 1, "e") == 1


async def test_an_unknown_session_is_not_found(sessions):
    assert (await refusal_of(begin(sessions, "nope"))).reason is Reason.UNKNOWN_SESSION


async def test_a_second_turn_waits_for_the_first(sessions, session_id):
    lease = await begin(sessions, session_id)
    refusal = await refusal_of(begin(sessions, session_id, SECOND))
    assert refusal.reason is Reason.TURN_RUNNING
    assert refusal.retry_delay_s > 0
    assert await sessions.commit(lease, [1], 1, "e") == 1
    assert (await begin(sessions, session_id, SECOND)).session.version == 1


async def test_a_higher_attempt_takes_the_turn_and_the_older_cannot_save(sessions, session_id):
    older = await begin(sessions, session_id, FIRST)
    newer = await begin(sessions, session_id, RETRY)
    for owner in (FIRST, RETRY):
        assert (await refusal_of(begin(sessions, session_id, owner))).reason is Reason.SUPERSEDED
    assert not await sessions.renew(older)
    assert await sessions.commit(older, [9], 1, "e") is None
    await sessions.abandon(older)
    assert await sessions.renew(newer)
    assert await sessions.commit(newer, [1, 2], 1, "e") == 1
    assert (await begin(sessions, session_id, SECOND)).history == (1, 2)


async def test_saving_twice_is_saving_once(sessions, session_id):
    lease = await begin(sessions, session_id)
    assert await sessions.commit(lease, [1, 2], 1, "e") == 1
    assert await sessions.commit(lease, [1, 2], 1, "e") == 1
    assert (await begin(sessions, session_id, SECOND)).session.version == 1


async def test_a_saved_request_is_run_again_only_by_a_higher_attempt_and_then_in_its_own_place(
    sessions, session_id
):
    await take_turn(sessions, session_id, SECOND, [1, 2, 3], 1)
    await take_turn(sessions, session_id, FIRST, [1, 2, 7, 8], 3, keep_output_tokens=1)
    assert (await refusal_of(begin(sessions, session_id, FIRST))).reason is Reason.SUPERSEDED
    again = {"keep_output_tokens": 1, "expect_version": 1}
    lease = await begin(sessions, session_id, RETRY, **again)
    assert (lease.version, lease.history) == (1, (1, 2))
    assert await sessions.commit(lease, [1, 2, 7, 9], 3, "engine-1") == 2
    assert (await begin(sessions, session_id, LeaseOwner("r3", 0))).history == (1, 2, 7, 9)


async def test_a_saved_request_that_was_followed_by_another_is_not_run_again(sessions, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2], 1)
    await take_turn(sessions, session_id, SECOND, [1, 2, 3], 2)
    refusal = await refusal_of(begin(sessions, session_id, RETRY, expect_version=0))
    assert refusal.reason is Reason.SESSION_VERSION


async def test_an_abandoned_turn_leaves_the_session_as_it_was(sessions, memory, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2, 3], 1)
    lease = await begin(sessions, session_id, SECOND, keep_output_tokens=1)
    await sessions.abandon(lease)
    assert memory.num_leases == 0
    assert (await begin(sessions, session_id, LeaseOwner("r3", 0))).history == (1, 2, 3)


@pytest.mark.parametrize("expected", [0, 2])
async def test_another_version_than_expected_is_refused(sessions, memory, session_id, expected):
    await take_turn(sessions, session_id, FIRST, [1], 1)
    refusal = await refusal_of(begin(sessions, session_id, SECOND, expect_version=expected))
    assert refusal.reason is Reason.SESSION_VERSION
    assert memory.num_leases == 0


@pytest.mark.parametrize(("keep", "history"), [(0, (1, 2)), (2, (1, 2, 3, 4)), (3, (1, 2, 3, 4, 5))])
async def test_the_last_answer_is_cut_where_its_reader_stopped(sessions, session_id, keep, history):
    await take_turn(sessions, session_id, FIRST, [1, 2, 3, 4, 5], 2)
    assert (await begin(sessions, session_id, SECOND, keep_output_tokens=keep)).history == history


async def test_more_of_an_answer_than_there_is_cannot_be_kept(sessions, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2, 3], 2)
    refusal = await refusal_of(begin(sessions, session_id, SECOND, keep_output_tokens=2))
    assert (refusal.reason, refusal.field) == (Reason.INVALID_FIELD, "session.keep_output_tokens")


async def test_a_session_stays_with_its_model(sessions, session_id):
    refusal = await refusal_of(begin(sessions, session_id, model="other"))
    assert (refusal.reason, refusal.field) == (Reason.INVALID_FIELD, "model")


async def test_a_lease_lasts_while_it_is_renewed(sessions, clock, session_id):
    lease = await begin(sessions, session_id)
    for _ in range(300):  # 50 minutes: longer than a session may be idle
        clock.now += 10
        assert await sessions.renew(lease)
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.TURN_RUNNING
    assert await sessions.commit(lease, [1], 1, "e") == 1


async def test_a_lost_lease_saves_only_if_nobody_else_took_the_session(sessions, clock, session_id):
    lease = await begin(sessions, session_id)
    clock.now += 31
    assert not await sessions.renew(lease)
    assert await sessions.commit(lease, [1], 1, "e") == 1
    lease = await begin(sessions, session_id, SECOND)
    clock.now += 31
    third = await begin(sessions, session_id, LeaseOwner("r3", 0), expect_version=1)
    assert await sessions.commit(lease, [2], 1, "e") is None
    assert await sessions.commit(third, [3], 1, "e") == 2


async def test_a_turn_whose_gateway_died_is_noticed_by_the_next(sessions, clock, session_id):
    await begin(sessions, session_id, FIRST)
    clock.now += 31
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.SESSION_VERSION
    assert (await begin(sessions, session_id, SECOND, expect_version=0)).history == ()


async def test_a_store_away_at_the_end_is_told_now_and_noticed_by_the_next_turn(
    sessions, store, clock, session_id
):
    lease = await begin(sessions, session_id)
    store.is_away = True
    assert not await sessions.renew(lease)
    assert await sessions.commit(lease, [1, 2], 1, "e") is None
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.UNAVAILABLE
    store.is_away = False
    clock.now += 31
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.SESSION_VERSION
    assert (await begin(sessions, session_id, SECOND, expect_version=0)).history == ()


async def test_a_store_away_refuses_to_open_and_release(sessions, store, session_id):
    store.is_away = True
    assert (await refusal_of(sessions.open(ACME, "u", "m"))).reason is Reason.UNAVAILABLE
    assert (await refusal_of(sessions.release(ACME, "u", session_id))).reason is Reason.UNAVAILABLE


async def resume(sessions, session_id, owner=RETRY, version=0):
    return await sessions.resume_turn(ACME, SessionTurn(session_id, "u"), owner, version, "m")


async def test_a_resumed_turn_takes_over_and_saves(sessions, session_id):
    older = await begin(sessions, session_id, FIRST)
    newer = await resume(sessions, session_id)
    assert await sessions.commit(newer, [1, 2], 1, "e") == 1
    assert await sessions.commit(older, [1, 2], 1, "e") == 1  # saved already, and just so
    assert await sessions.commit(older, [1, 3], 1, "e") is None
    assert (await begin(sessions, session_id, SECOND)).history == (1, 2)


async def test_a_turn_saved_in_part_is_replaced_by_the_resumed_ones_end(sessions, memory, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2], 1)
    lease = await resume(sessions, session_id)
    assert lease.version == 0
    assert await sessions.commit(lease, [1, 2, 3, 4], 1, "e") == 1
    assert await sessions.commit(lease, [1, 2, 3, 4], 1, "e") == 1
    assert memory.num_leases == 0
    after = await begin(sessions, session_id, SECOND)
    assert (after.version, after.history) == (1, (1, 2, 3, 4))


async def test_a_resumed_turn_that_fails_leaves_what_was_saved_in_part(sessions, memory, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2], 1)
    await sessions.abandon(await resume(sessions, session_id))
    assert memory.num_leases == 0
    assert (await begin(sessions, session_id, SECOND)).history == (1, 2)


async def test_a_resumed_turn_whose_gateway_died_is_missing_beyond_what_was_saved(
    sessions, clock, session_id
):
    await take_turn(sessions, session_id, FIRST, [1, 2], 1)
    await resume(sessions, session_id)
    clock.now += 31
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.SESSION_VERSION
    assert (await begin(sessions, session_id, SECOND, expect_version=1)).history == (1, 2)


async def test_an_older_attempt_never_overwrites_a_higher_one(sessions, clock, session_id):
    older = await begin(sessions, session_id, FIRST)
    newer = await resume(sessions, session_id)
    clock.now += 31  # neither has the lease any more
    assert await sessions.commit(older, [1, 9], 1, "e") is None
    assert await sessions.commit(newer, [1, 2], 1, "e") == 1
    assert await sessions.commit(older, [1, 9], 1, "e") is None
    for late in (FIRST, RETRY):
        assert (await refusal_of(resume(sessions, session_id, late))).reason is Reason.SUPERSEDED
    assert (await begin(sessions, session_id, SECOND)).history == (1, 2)


async def test_a_resume_after_a_later_turn_goes_on_unsaved(sessions, session_id):
    await take_turn(sessions, session_id, FIRST, [1, 2], 1)
    await take_turn(sessions, session_id, SECOND, [1, 2, 3], 2)
    assert await sessions.commit(await resume(sessions, session_id), [1, 9], 1, "e") is None
    assert (await begin(sessions, session_id, LeaseOwner("r3", 0))).history == (1, 2, 3)


@pytest.mark.parametrize("owner", [FIRST, LeaseOwner("r1", 0)])
async def test_a_resume_without_a_higher_attempt_is_superseded(sessions, session_id, owner):
    await begin(sessions, session_id, FIRST)
    assert (await refusal_of(resume(sessions, session_id, owner))).reason is Reason.SUPERSEDED


async def test_a_resumed_stream_goes_on_unsaved_where_its_session_is_not(sessions, store, memory, session_id):
    elsewhere = await resume(sessions, "kept-by-another-gateway")
    await take_turn(sessions, session_id, SECOND, [1], 1)
    outrun = await resume(sessions, session_id, version=0)
    running = await begin(sessions, session_id, LeaseOwner("r3", 0))
    beside = await resume(sessions, session_id, version=1)
    store.is_away = True
    cut_off = await resume(sessions, session_id)
    store.is_away = False
    for lease in (elsewhere, outrun, beside, cut_off):
        assert not await sessions.renew(lease)
        assert await sessions.commit(lease, [9], 1, "e") is None
        await sessions.abandon(lease)
    assert memory.num_leases == 1
    assert await sessions.commit(running, [1, 2], 1, "e") == 2


async def test_release_erases_at_once_and_a_running_turn_cannot_bring_it_back(sessions, memory, session_id):
    lease = await begin(sessions, session_id)
    assert await sessions.release(ACME, "u", session_id) == lease.key
    assert len(memory) == 0
    assert await sessions.commit(lease, [1], 1, "e") is None
    assert (len(memory), memory.num_leases) == (0, 0)
    assert (await refusal_of(begin(sessions, session_id, SECOND))).reason is Reason.UNKNOWN_SESSION


async def test_an_idle_session_is_erased(sessions, memory, clock, session_id):
    clock.now += 30 * 60 - 1
    lease = await begin(sessions, session_id)
    await sessions.abandon(lease)
    clock.now += 30 * 60
    assert len(memory) == 0
    assert (await refusal_of(begin(sessions, session_id))).reason is Reason.UNKNOWN_SESSION


async def test_a_tenant_has_only_so_many_and_never_pushes_out_anothers(clock):
    numbers = itertools.count()
    memory = MemoryStore(clock, max_records_per_group=2)
    sessions = Sessions(memory, KEY, lambda: f"s{next(numbers)}")
    foreign = await sessions.open(GLOBEX, "u", "m")
    first, second = await sessions.open(ACME, "u", "m"), await sessions.open(ACME, "u", "m")
    running = await begin(sessions, first)
    third = await sessions.open(ACME, "u", "m")
    assert (await refusal_of(begin(sessions, second, SECOND))).reason is Reason.UNKNOWN_SESSION
    await begin(sessions, third, SECOND)
    assert (await refusal_of(sessions.open(ACME, "u", "m"))).reason is Reason.QUOTA
    assert await sessions.commit(running, [1], 1, "e") == 1
    assert (await begin(sessions, foreign, FIRST, tenant=GLOBEX)).session.version == 0
    assert len(memory) == 3


NAMES = st.text(max_size=8)


@given(
    session=st.builds(
        Session,
        NAMES,
        st.integers(0, 2**63),
        st.lists(st.integers(0, 2**32 - 1)).map(tuple),
        st.integers(0, 100),
        st.integers(0, 100),
        NAMES,
        NAMES,
        st.integers(0, 2**32 - 1),
        NAMES,
        st.integers(0, 2**32 - 1),
    )
)
def test_a_session_comes_back_from_bytes_as_it_was(session):
    assert Session.from_bytes(session.to_bytes()) == session
