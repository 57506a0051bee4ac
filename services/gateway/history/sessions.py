"""Sessions over a store: opened, taken turn by turn under a lease, saved once per turn, erased.

A turn marks its session before it runs; saving or giving it up takes the mark away. So a history that lacks a
turn is noticed even when the store was away at its end. Draws no ids and reads no clock itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.contract.errors import MeshError, Reason, unavailable
from services.gateway.access.identity import Tenant
from services.gateway.access.salt import session_key
from services.gateway.history.session import Session, check_turn
from services.gateway.history.store.protocol import LeaseOwner, Record, Store, StoreFull, StoreUnavailable
from services.gateway.spec.generation_spec import SessionTurn

RENEW_EVERY_S = 10.0
"""How often a running turn renews its lease."""
TURN_RETRY_DELAY_S = 1.0
STORE_RETRY_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class TurnLease:
    """One running turn of one session."""

    key: bytes
    """Also names the session's retention in engines."""
    owner: LeaseOwner
    session: Session
    """As it is in the store: with this turn already in it, if an earlier attempt saved it."""
    version: int
    """Version that the turn follows."""
    history: tuple[int, ...]
    """Ids before the new turn."""
    revision: int | None
    """To save over; None if this turn cannot be saved."""


class Sessions:
    """All sessions of a deployment's tenants."""

    def __init__(self, store: Store, deployment_key: bytes, draw_session_id: Callable[[], str]) -> None:
        self._store = store
        self._deployment_key = deployment_key
        self._draw_session_id = draw_session_id

    async def open(self, tenant: Tenant, user_id: str, model: str) -> str:
        """Makes an empty session, version 0, and returns its id. Raises MeshError: QUOTA, UNAVAILABLE."""
        session_id = self._draw_session_id()
        try:
            revision = await self._store.add(
                self._key(tenant, user_id, session_id), tenant.key.hex(), Session(model).to_bytes()
            )
        except StoreFull as error:
            message = f"no more sessions for this tenant: {error}"
            raise MeshError(Reason.QUOTA, message, retry_delay_s=TURN_RETRY_DELAY_S) from error
        except StoreUnavailable as error:
            raise _store_away() from error
        assert revision is not None, "a session id was drawn twice"
        return session_id

    async def release(self, tenant: Tenant, user_id: str, session_id: str) -> bytes:
        """Erases a session and returns its key. Raises MeshError: UNKNOWN_SESSION, UNAVAILABLE."""
        key = self._key(tenant, user_id, session_id)
        try:
            was_there = await self._store.delete(key)
        except StoreUnavailable as error:
            raise _store_away() from error
        if not was_there:
            raise _unknown_session("session_id")
        return key

    async def begin_turn(self, tenant: Tenant, turn: SessionTurn, owner: LeaseOwner, model: str) -> TurnLease:
        """Takes the session for a new turn.

        Raises MeshError: UNKNOWN_SESSION, SESSION_VERSION, TURN_RUNNING, SUPERSEDED, INVALID_FIELD or
        UNAVAILABLE.
        """
        key = self._key(tenant, turn.user_id, turn.id)
        try:
            holder = await self._store.acquire(key, owner)
            if holder is not None:
                raise _held_by(holder, owner)
            try:
                return await self._begin(key, turn, owner, model)
            except BaseException:
                await self._store.release(key, owner)
                raise
        except StoreUnavailable as error:
            raise _store_away() from error

    async def resume_turn(
        self, tenant: Tenant, turn: SessionTurn, owner: LeaseOwner, version: int, model: str
    ) -> TurnLease:
        """Takes the session for a stream that is resumed, whose turn followed this version.

        What an earlier attempt saved of the turn is saved over. The stream goes on in any case, if need be
        without being saved. Raises MeshError SUPERSEDED only.
        """
        key = self._key(tenant, turn.user_id, turn.id)
        unsaved = TurnLease(key, owner, Session(model, version), version, (), None)
        try:
            holder = await self._store.acquire(key, owner)
            if holder is not None:
                if holder.request_id == owner.request_id:
                    raise _held_by(holder, owner)
                return unsaved
            lease = None
            try:
                lease = await self._rejoin(key, turn, owner, version)
            finally:
                if lease is None:
                    await self._store.release(key, owner)
            return lease or unsaved
        except StoreUnavailable:
            return unsaved

    async def renew(self, lease: TurnLease) -> bool:
        """Keeps the lease; False if it is lost or the store is away. The turn runs on: the commit decides."""
        if lease.revision is None:
            return False
        try:
            return await self._store.renew(lease.key, lease.owner)
        except StoreUnavailable:
            return False

    async def commit(
        self, lease: TurnLease, ids: Sequence[int], num_prompt_tokens: int, engine_id: str
    ) -> int | None:
        """Saves the turn and gives the session back: its new version, None if it could not be saved.

        ids are the whole history; of them, num_prompt_tokens come before the new answer. Saving twice is
        saving once.
        """
        if lease.revision is None:
            return None
        session = replace(
            lease.session,
            version=lease.version + 1,
            ids=tuple(ids),
            num_ids_before_turn=len(lease.history),
            num_ids_before_answer=num_prompt_tokens,
            last_engine_id=engine_id,
            last_request_id=lease.owner.request_id,
            last_client_attempt=lease.owner.client_attempt,
            pending_request_id="",
            pending_client_attempt=0,
        )
        version = await self._save(lease, lease.revision, session)
        await self._release(lease)
        return version

    async def abandon(self, lease: TurnLease) -> None:
        """Gives the session back as it was before the turn."""
        if lease.revision is None:
            return
        await self._save(
            lease, lease.revision, replace(lease.session, pending_request_id="", pending_client_attempt=0)
        )
        await self._release(lease)

    def _key(self, tenant: Tenant, user_id: str, session_id: str) -> bytes:
        return session_key(self._deployment_key, tenant, user_id, session_id)

    async def _begin(self, key: bytes, turn: SessionTurn, owner: LeaseOwner, model: str) -> TurnLease:
        record = await self._store.get(key)
        if record is None:
            raise _unknown_session()
        session = Session.from_bytes(record.value)
        _check_attempt(session, owner)
        check_turn(session, turn, owner.request_id, model)
        lease = await self._mark(key, turn, owner, session, record)
        if lease is None:
            raise _turn_running()
        return lease

    async def _rejoin(
        self, key: bytes, turn: SessionTurn, owner: LeaseOwner, version: int
    ) -> TurnLease | None:
        record = await self._store.get(key)
        if record is None:
            return None
        session = Session.from_bytes(record.value)
        _check_attempt(session, owner)
        if session.version_before(owner.request_id) != version:
            return None
        return await self._mark(key, turn, owner, session, record)

    async def _mark(
        self, key: bytes, turn: SessionTurn, owner: LeaseOwner, session: Session, record: Record
    ) -> TurnLease | None:
        """From now on no older attempt can save: what it would save over has changed."""
        history = session.history(owner.request_id, turn.keep_output_tokens)
        marked = replace(
            session, pending_request_id=owner.request_id, pending_client_attempt=owner.client_attempt
        )
        revision = await self._store.replace(key, marked.to_bytes(), record.revision, owner)
        if revision is None:
            return None
        return TurnLease(key, owner, marked, session.version_before(owner.request_id), history, revision)

    async def _save(self, lease: TurnLease, revision: int, session: Session) -> int | None:
        """Compare-and-set; a record where this request has saved just these ids already counts as saved."""
        try:
            if await self._store.replace(lease.key, session.to_bytes(), revision, lease.owner) is not None:
                return session.version
            record = await self._store.get(lease.key)
        except StoreUnavailable:
            return None
        if record is None:
            return None
        found = Session.from_bytes(record.value)
        is_saved = (found.version, found.last_request_id, found.ids) == (
            session.version,
            session.last_request_id,
            session.ids,
        )
        return found.version if is_saved else None

    async def _release(self, lease: TurnLease) -> None:
        try:
            await self._store.release(lease.key, lease.owner)
        except StoreUnavailable:
            return  # the lease runs out by itself


def _held_by(holder: LeaseOwner, owner: LeaseOwner) -> MeshError:
    if holder.request_id == owner.request_id:
        return _superseded(holder.client_attempt, owner)
    return _turn_running()


def _check_attempt(session: Session, owner: LeaseOwner) -> None:
    """A turn is taken up again, saved or not, only by a higher attempt."""
    last = session.last_attempt(owner.request_id)
    if owner.client_attempt <= last:
        raise _superseded(last, owner)


def _superseded(last: int, owner: LeaseOwner) -> MeshError:
    message = f"client_attempt {last} of this request is known; given {owner.client_attempt}"
    return MeshError(Reason.SUPERSEDED, message, field="client_attempt")


def _turn_running() -> MeshError:
    message = "another turn of this session runs"
    return MeshError(Reason.TURN_RUNNING, message, retry_delay_s=TURN_RETRY_DELAY_S)


def _unknown_session(field: str = "session.id") -> MeshError:
    return MeshError(Reason.UNKNOWN_SESSION, "no such session for this user", field=field)


def _store_away() -> MeshError:
    return unavailable("sessions cannot be read or saved now", STORE_RETRY_DELAY_S)
