"""A session's place in its own history: which version the next turn follows.

Pure; the clients' sessions wrap it.
"""

from pagemesh.events import Complete, Event
from pagemesh.v1 import gateway_pb2


class SessionCursor:
    """Keeps a turn from silently following a history that lacks the one before."""

    def __init__(self, session_id: str, user_id: str, version: int) -> None:
        self.session_id = session_id
        self.user_id = user_id
        self._version: int | None = version
        self._last_known = version

    @property
    def version(self) -> int | None:
        """Version that the next turn will follow; None after a turn that was left before its end."""
        return self._version

    def begin_turn(self, keep_output_tokens: int | None = None) -> gateway_pb2.SessionTurn:
        turn = gateway_pb2.SessionTurn(id=self.session_id, user_id=self.user_id)
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

    def turn_failed(self) -> None:
        """A failed turn commits nothing."""
        self._version = self._last_known
