"""The one error a caller sees, and how it is read off a gRPC status.

Details are parsed from the trailing metadata by hand: this package needs no grpcio-status.
"""

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from pagemesh.events import Receipt, receipt_of
from pagemesh.v1 import generation_pb2

DOMAIN = "pagemesh"
_DETAILS_KEY = "grpc-status-details-bin"
_BROKEN_TRANSPORT = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED})


class PagemeshError(Exception):
    """A request that did not end well."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str | None = None,
        field: str | None = None,
        retry_delay_s: float | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        """Name of an ErrorReason without its prefix; None if no pagemesh process said why."""
        self.field = field
        """The request's field at fault."""
        self.retry_delay_s = retry_delay_s
        """When the mesh advises to try again."""
        self.receipt = receipt

    @property
    def is_retryable(self) -> bool:
        """True for an outage that another gateway or moment may not have."""
        if self.reason is None:
            return self.code is grpc.StatusCode.UNAVAILABLE or self.code in _BROKEN_TRANSPORT
        return self.code is grpc.StatusCode.UNAVAILABLE and self.reason != "CRASH_LIMIT"

    def __str__(self) -> str:
        head = self.code.name if self.reason is None else f"{self.code.name}/{self.reason}"
        place = "" if self.field is None or self.field in self.message else f" (field {self.field})"
        return f"{head}: {self.message}{place}"


def broken_stream(message: str) -> PagemeshError:
    """The stream stopped in a way that no status describes."""
    return PagemeshError(grpc.StatusCode.UNAVAILABLE, message)


def error_of(error: grpc.RpcError | grpc.aio.AioRpcError) -> PagemeshError:
    """Reads a call's end. The details are optional: a proxy or a broken socket sends none."""
    code, message = error.code(), error.details()
    parsed = PagemeshError(code, message or code.name.lower().replace("_", " "))
    for detail in _details(error.trailing_metadata()):
        _read_detail(parsed, detail)
    return parsed


def _details(trailers: Iterable[Any] | None) -> list[Message | None]:
    for key, value in trailers or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                return []
            return [_unpack(detail) for detail in status.details]
    return []


_KINDS = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    generation_pb2.Receipt,
)


def _unpack(detail: any_pb2.Any) -> Message | None:
    for kind in _KINDS:
        message = kind()
        if detail.Unpack(message):
            return message
    return None


def _read_detail(error: PagemeshError, detail: Message | None) -> None:
    match detail:
        case error_details_pb2.ErrorInfo(domain=domain, reason=reason) if domain == DOMAIN:
            error.reason = reason.removeprefix("ERROR_REASON_")
        case error_details_pb2.BadRequest(field_violations=violations) if violations:
            error.field = violations[0].field
        case error_details_pb2.RetryInfo(retry_delay=delay):
            error.retry_delay_s = delay.seconds + delay.nanos / 1e9
        case generation_pb2.Receipt():
            error.receipt = receipt_of(detail)
