"""A session between turns: the ids of its history and what the next turn must know. Knows no store."""

import json
import struct
from dataclasses import dataclass
from typing import Self

from services.contract.errors import MeshError, Reason, invalid_field
from services.gateway.spec.generation_spec import SessionTurn


@dataclass(frozen=True, slots=True)
class Session:
    """What is kept of a session. Its key, not its value, binds it to tenant and user."""

    model: str
    version: int = 0
    ids: tuple[int, ...] = ()
    """All ids so far, prompts and answers."""
    num_ids_before_turn: int = 0
    """Where the last turn begins in ids, so that a higher attempt at it can run it again."""
    num_ids_before_answer: int = 0
    """Where the last answer begins in ids."""
    last_engine_id: str = ""
    last_request_id: str = ""
    """Of the turn that made this version, so that its next attempt replaces it."""
    last_client_attempt: int = 0
    pending_request_id: str = ""
    """Of a turn that has begun and was neither saved nor given up."""
    pending_client_attempt: int = 0

    def to_bytes(self) -> bytes:
        """One line of JSON, then the ids as u32, little-endian."""
        head = [
            self.model,
            self.version,
            self.num_ids_before_turn,
            self.num_ids_before_answer,
            self.last_engine_id,
            self.last_request_id,
            self.last_client_attempt,
            self.pending_request_id,
            self.pending_client_attempt,
        ]
        return json.dumps(head).encode() + b"\n" + struct.pack(f"<{len(self.ids)}I", *self.ids)

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """The reverse of to_bytes."""
        head, _, packed = value.partition(b"\n")
        model, version, *rest = json.loads(head)
        return cls(model, version, struct.unpack(f"<{len(packed) // 4}I", packed), *rest)

    def version_before(self, request_id: str) -> int:
        """Version that a turn of this request follows: one less where an attempt at it made this one."""
        return self.version - 1 if self._is_last(request_id) else self.version

    def last_attempt(self, request_id: str) -> int:
        """The highest attempt at this request that took the session, -1 if none is known."""
        last = self.last_client_attempt if self._is_last(request_id) else -1
        pending = self.pending_client_attempt if self.pending_request_id == request_id else -1
        return max(last, pending)

    def history(self, request_id: str, keep_output_tokens: int | None) -> tuple[int, ...]:
        """Ids that the request's turn follows, the answer before cut where its reader stopped.

        Raises MeshError.
        """
        if self._is_last(request_id):
            return self.ids[: self.num_ids_before_turn]
        if keep_output_tokens is None:
            return self.ids
        num_answer = len(self.ids) - self.num_ids_before_answer
        if keep_output_tokens > num_answer:
            message = f"the previous answer has {num_answer} tokens; given {keep_output_tokens}"
            raise invalid_field("session.keep_output_tokens", message)
        return self.ids[: self.num_ids_before_answer + keep_output_tokens]

    def _is_last(self, request_id: str) -> bool:
        return self.version > 0 and self.last_request_id == request_id


def check_turn(session: Session, turn: SessionTurn, request_id: str, model: str) -> None:
    """Raises MeshError unless this turn may follow.

    A turn that began and was never saved is missing from the history. Its caller may not know, so the next
    turn goes on only if it names the version that it means.
    """
    if session.model != model:
        raise invalid_field("model", "the session is of another model")
    version = session.version_before(request_id)
    if turn.expect_version is not None and turn.expect_version != version:
        raise _version_error(f"the session is at version {version}; expected {turn.expect_version}")
    if turn.expect_version is None and session.pending_request_id not in ("", request_id):
        raise _version_error(f"the last turn was not saved; to go on without it, expect version {version}")


def _version_error(message: str) -> MeshError:
    return MeshError(Reason.SESSION_VERSION, message, field="session.expect_version")
