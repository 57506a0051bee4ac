"""Errors cross the wire whole, and small enough for trailers."""

import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from pagemesh.v1 import generation_pb2
from services.contract.errors import MeshError, Reason, invalid_field
from services.contract.status import DETAILS_KEY, STATUS, from_rpc_error, rpc_status, to_status

PROTO = Path(__file__).parents[3] / "protos/pagemesh/v1/generation.proto"


def _rpc_error(status: status_pb2.Status, code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, status.message)


def _unpacked(status: status_pb2.Status, kind: Any) -> Any:
    detail = kind()
    assert any(item.Unpack(detail) for item in status.details)
    return detail


def test_reasons_are_the_protos() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name in dict(generation_pb2.ErrorReason.items())}
    assert names - {"UNSPECIFIED"} == {reason.value for reason in Reason} == set(Reason.__members__)


def test_every_reason_has_the_status_that_the_proto_says() -> None:
    """The comment before each value ends with its status, then perhaps the further details."""
    pattern = r"// .*?\. ([A-Z_]+)(?: with \w+)?\.\n\s+ERROR_REASON_([A-Z_]+) ="
    said = {name: status for status, name in re.findall(pattern, PROTO.read_text())}
    assert said == {reason.value: status.name for reason, status in STATUS.items()}


@pytest.mark.parametrize("reason", list(Reason))
def test_error_comes_back_as_it_went(reason: Reason) -> None:
    error = MeshError(reason, "prompt has 9120 tokens; the limit is 8192", field="text", retry_delay_s=0.25)
    status = to_status(error)
    back = from_rpc_error(_rpc_error(status, STATUS[reason]))
    assert (back.reason, back.message) == (reason, error.message)
    assert (back.field, back.retry_delay_s) == ("text", 0.25)


def test_details_are_the_standard_ones() -> None:
    status = to_status(invalid_field("sampling.top_p", "top_p is 0..1; given 2"))
    info = _unpacked(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "pagemesh")
    violation = _unpacked(status, error_details_pb2.BadRequest).field_violations[0]
    assert (violation.field, violation.description) == ("sampling.top_p", "top_p is 0..1; given 2")
    quota = to_status(MeshError(Reason.QUOTA, "100 a minute"))
    assert _unpacked(quota, error_details_pb2.QuotaFailure).violations[0].description == "100 a minute"


@pytest.mark.parametrize("message", ["x" * 20_000, "я" * 20_000, "👩‍👩‍👧‍👦" * 5_000, "a\ud800" * 3_000])
def test_long_messages_are_cut_on_a_character(message: str) -> None:
    receipt = generation_pb2.Receipt(trace_id="0" * 32, engine_id="e" * 64, system_fingerprint="f" * 16)
    status = to_status(MeshError(Reason.UNAVAILABLE, message, field="f" * 500, retry_delay_s=1.0), receipt)
    assert status.ByteSize() <= 2048
    assert 0 < len(status.message.encode()) <= 1024
    assert "\ufffd" not in status.message
    assert _unpacked(status, generation_pb2.Receipt) == receipt


def test_receipt_of_an_error_is_found_again() -> None:
    receipt = generation_pb2.Receipt(prompt_tokens=3)
    status = to_status(MeshError(Reason.DEADLINE, "late"), receipt)
    found = rpc_status(_rpc_error(status, grpc.StatusCode.DEADLINE_EXCEEDED))
    assert found is not None and _unpacked(found, generation_pb2.Receipt) == receipt


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.UNAVAILABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE),
        (grpc.StatusCode.UNKNOWN, Reason.INTERNAL),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.INTERNAL),
        (grpc.StatusCode.UNIMPLEMENTED, Reason.NOT_SUPPORTED),
    ],
)
def test_bare_status_of_the_transport_is_understood(code: grpc.StatusCode, reason: Reason) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "connection refused")
    assert from_rpc_error(error).reason is reason


def test_unreadable_and_foreign_details_fall_back() -> None:
    garbage = grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), garbage, "x")
    assert from_rpc_error(error).reason is Reason.UNAVAILABLE
    foreign = status_pb2.Status(code=14, message="x")
    foreign.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUOTA", domain="elsewhere"))
    assert from_rpc_error(_rpc_error(foreign, grpc.StatusCode.UNAVAILABLE)).reason is Reason.UNAVAILABLE
