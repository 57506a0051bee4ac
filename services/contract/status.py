"""The gRPC edge of the error tree: one table of codes, google.rpc details out and back in."""

from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from services.contract.errors import MeshError, Reason

DOMAIN = "pagemesh"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_BYTES = 1024
MAX_DETAILS_BYTES = 2048
"""Whole Status. Peers refuse large trailers, and their caller then sees that instead of the cause."""
MAX_FIELD_BYTES = 128
SPARE_BYTES = 64
"""For the Status' own frame around its parts."""

STATUS: Mapping[Reason, grpc.StatusCode] = {
    Reason.INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNDECODABLE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_SUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.UNKNOWN_MODEL: grpc.StatusCode.NOT_FOUND,
    Reason.UNKNOWN_SESSION: grpc.StatusCode.NOT_FOUND,
    Reason.SESSION_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.TURN_RUNNING: grpc.StatusCode.ABORTED,
    Reason.SUPERSEDED: grpc.StatusCode.ABORTED,
    Reason.RESUME_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.QUEUE_WAIT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.CRASH_LIMIT: grpc.StatusCode.UNAVAILABLE,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.BAD_LOGITS: grpc.StatusCode.INTERNAL,
    Reason.SLOW_READER: grpc.StatusCode.ABORTED,
    Reason.QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.TEMPLATE: grpc.StatusCode.INVALID_ARGUMENT,
}

_FALLBACK: Mapping[grpc.StatusCode, Reason] = {
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    grpc.StatusCode.OUT_OF_RANGE: Reason.INVALID_FIELD,
    grpc.StatusCode.UNIMPLEMENTED: Reason.NOT_SUPPORTED,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE,
    grpc.StatusCode.UNAVAILABLE: Reason.UNAVAILABLE,
    grpc.StatusCode.CANCELLED: Reason.UNAVAILABLE,
}
"""For peers that give no ErrorInfo: the transport itself, proxies. The rest is INTERNAL: so is a message that
the transport finds too large, which on an internal hop should never have been sent."""


def cut(text: str, max_bytes: int) -> str:
    """At most max_bytes of UTF-8, cut on a character boundary. Lone surrogates become '?'."""
    encoded = text.encode("utf-8", errors="replace")
    return encoded[:max_bytes].decode("utf-8", errors="ignore")


def to_status(error: MeshError, *extra: Message) -> status_pb2.Status:
    """google.rpc.Status of at most 2 KiB: extra messages (the receipt) are kept, the text gives way."""
    status = status_pb2.Status(code=STATUS[error.reason].value[0])
    for detail in (*_details(error), *extra):
        status.details.add().Pack(detail)
    room = MAX_DETAILS_BYTES - SPARE_BYTES - status.ByteSize()
    assert room > 0, f"details of {status.ByteSize()} bytes leave no room for a message"
    status.message = cut(error.message, min(MAX_MESSAGE_BYTES, room))
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: MeshError, *extra: Message) -> NoReturn:
    """Ends the call with the error's status and details."""
    status = to_status(error, *extra)
    trailers = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(STATUS[error.reason], status.message, trailers)
    raise AssertionError("abort returned")


def from_rpc_error(error: grpc.aio.AioRpcError) -> MeshError:
    """The MeshError that the other end aborted with, or the nearest reason for the bare status code."""
    status = rpc_status(error)
    if status is not None:
        mesh_error = _from_details(status)
        if mesh_error is not None:
            return mesh_error
    reason = _FALLBACK.get(error.code(), Reason.INTERNAL)
    return MeshError(reason, cut(error.details() or error.code().name, MAX_MESSAGE_BYTES))


def rpc_status(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    """google.rpc.Status in the trailers, if there is a readable one."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _details(error: MeshError) -> list[Message]:
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    details: list[Message] = [info]
    short = cut(error.message, MAX_FIELD_BYTES)
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=cut(error.field, MAX_FIELD_BYTES), description=short
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_delay_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(max(0, round(error.retry_delay_s * 1e9)))
        details.append(retry)
    if error.reason is Reason.QUOTA:
        quota = error_details_pb2.QuotaFailure.Violation(subject="tenant", description=short)
        details.append(error_details_pb2.QuotaFailure(violations=[quota]))
    return details


def _from_details(status: status_pb2.Status) -> MeshError | None:
    reason: Reason | None = None
    field: str | None = None
    retry_delay_s: float | None = None
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason = _reason_of(info.reason)
        elif detail.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif detail.Unpack(retry):
            retry_delay_s = retry.retry_delay.ToNanoseconds() / 1e9
    if reason is None:
        return None
    return MeshError(reason, status.message, field=field, retry_delay_s=retry_delay_s)


def _reason_of(name: str) -> Reason | None:
    return Reason(name) if name in Reason.__members__ else None
