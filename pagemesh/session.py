"""A session's place in its own history: which version the next turn follows.

Pure; the clients' sessions wrap it.
"""

from pagemesh.errors import PagemeshError
from pagemesh.events import Complete, Event
from pagemesh.v1 import gateway_pb2


class SessionCursor:
    """Keeps a turn from silently following a history that lacks the one before."""

    def __init__(self, session_id: str, user_id: str, version: int) -> None:
        self.session_id = session_id
        self.user_id = user_id
        self._version: int | None = version
        self._last_known = version
        self._is_expecting = False
        """The turn that runs named the version that it follows."""

    @property
    def version(self) -> int | None:
        """Version that the next turn will follow; None after a turn whose end is not known here."""
        return self._version

    def begin_turn(self, keep_output_tokens: int | None = None) -> gateway_pb2.SessionTurn:
        turn = gateway_pb2.SessionTurn(id=self.session_id, user_id=self.user_id)
        self._is_expecting = self._version is not None
        if self._version is not None:
            turn.expect_version = self._version
            self._last_known = self._version
        if keep_output_tokens is not None:
            turn.keep_output_tokens = keep_output_tokens
        self._version = None
        return turn

    def observe(self, event: Event) -> None:
        if not isinstance(event, Complete):
            return
        # A turn that could not be saved still counts: the next one expects it, and is refused instead of
        # going on as if it had not been said.
        saved = event.session_version
        self._version = saved if saved is not None else self._last_known + 1

    def turn_failed(self, error: PagemeshError) -> None:
        """A failed turn commits nothing; one whose end was lost on its way may have committed.

        A session that stands elsewhere than it should says so once; the next turn follows what is there.
        """
        is_lost = error.reason is None or error.is_retryable
        is_elsewhere = error.reason == "SESSION_VERSION" and self._is_expecting
        self._version = None if is_lost or is_elsewhere else self._last_known
