"""A session's turn while its request runs: the lease is kept alive, and in the end saved or given up, once.

It knows no prompts or streams.
"""

import asyncio
from collections.abc import Sequence

from services.chassis.tasks import Tasks
from services.gateway.history.sessions import RENEW_EVERY_S, Sessions, TurnLease


class Turn:
    """Renews its lease from the start until it is saved or given up."""

    def __init__(self, sessions: Sessions, lease: TurnLease, tasks: Tasks) -> None:
        self.lease = lease
        self._sessions = sessions
        self._tasks = tasks
        self._renewal: asyncio.Task[None] | None = tasks.spawn(self._renew(), "renew turn lease")

    async def save(self, ids: Sequence[int], num_prompt_ids: int, engine_id: str) -> int | None:
        """The session's new version, None if it could not be saved."""
        self._stop_renewal()
        return await self._sessions.commit(self.lease, ids, num_prompt_ids, engine_id)

    async def save_for_good(self, ids: Sequence[int], num_prompt_ids: int, engine_id: str) -> int | None:
        """As save, and goes on saving should the waiting caller go."""
        task = self._tasks.spawn(self.save(ids, num_prompt_ids, engine_id), "save turn")
        return await asyncio.shield(task)

    async def give_up(self) -> None:
        """The session stays as it was."""
        self._stop_renewal()
        await self._sessions.abandon(self.lease)

    def save_later(self, ids: Sequence[int], num_prompt_ids: int, engine_id: str) -> None:
        """Saves without anybody waiting: the caller is gone."""
        self._stop_renewal()
        self._tasks.spawn(self.save(ids, num_prompt_ids, engine_id), "save cancelled turn")

    def give_up_later(self) -> None:
        """Gives up without anybody waiting."""
        self._stop_renewal()
        self._tasks.spawn(self.give_up(), "give turn up")

    def _stop_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self._sessions.renew(self.lease)
