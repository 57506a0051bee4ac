"""The one error tree of the mesh: a reason that every edge knows, and a message for a person.

It knows no transport; `status` maps it to gRPC. Messages hold limits and given values, never prompt text.
"""

from enum import StrEnum


class Reason(StrEnum):
    """`reason` of google.rpc.ErrorInfo; the same words as ErrorReason in generation.proto."""

    INVALID_FIELD = "INVALID_FIELD"
    UNDECODABLE = "UNDECODABLE"
    TOO_LONG = "TOO_LONG"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    UNKNOWN_SESSION = "UNKNOWN_SESSION"
    SESSION_VERSION = "SESSION_VERSION"
    TURN_RUNNING = "TURN_RUNNING"
    SUPERSEDED = "SUPERSEDED"
    RESUME_MISMATCH = "RESUME_MISMATCH"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    QUEUE_FULL = "QUEUE_FULL"
    QUEUE_WAIT = "QUEUE_WAIT"
    DEADLINE = "DEADLINE"
    UNAVAILABLE = "UNAVAILABLE"
    CRASH_LIMIT = "CRASH_LIMIT"
    DRAINING = "DRAINING"
    BAD_LOGITS = "BAD_LOGITS"
    SLOW_READER = "SLOW_READER"
    QUOTA = "QUOTA"
    INTERNAL = "INTERNAL"
    TEMPLATE = "TEMPLATE"


class MeshError(Exception):
    """The caller's fault or an outage; our own bugs are assertions instead."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str | None = None,
        retry_delay_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_delay_s = retry_delay_s

    def __repr__(self) -> str:
        return f"MeshError({self.reason.value}, {self.message!r}, field={self.field!r})"


def invalid_field(field: str, message: str) -> MeshError:
    """The field is malformed or out of range."""
    return MeshError(Reason.INVALID_FIELD, message, field=field)


def not_supported(field: str) -> MeshError:
    """The field belongs to a later feature."""
    return MeshError(Reason.NOT_SUPPORTED, f"{field} is not supported", field=field)


def unavailable(message: str, retry_delay_s: float | None = None) -> MeshError:
    """Something that is needed is away now."""
    return MeshError(Reason.UNAVAILABLE, message, retry_delay_s=retry_delay_s)
