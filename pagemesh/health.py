"""Asks every process of a mesh whether it serves, by grpc.health.v1.

The health messages are read through two of protobuf's own wrappers, so that no further package is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import grpc
from google.protobuf import wrappers_pb2

from pagemesh.errors import PagemeshError, error_of
from pagemesh.v1 import scheduler_pb2
from pagemesh.v1.scheduler_pb2_grpc import SchedulerServiceStub

_METHOD = "/grpc.health.v1.Health/Check"


class Status(StrEnum):
    """What a process says of itself."""

    SERVING = "serving"
    NOT_SERVING = "not serving"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"


_STATUS = {1: Status.SERVING, 2: Status.NOT_SERVING}


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """One process."""

    name: str
    address: str
    status: Status
    detail: str = ""


def check(name: str, address: str, timeout_s: float) -> ProcessHealth:
    """Asks one process. Never raises for a process that is not there."""
    with grpc.insecure_channel(address) as channel:
        # HealthCheckRequest{string service = 1} and HealthCheckResponse{enum status = 1} have the wire form
        # of StringValue and Int32Value.
        call = channel.unary_unary(
            _METHOD,
            request_serializer=wrappers_pb2.StringValue.SerializeToString,
            response_deserializer=wrappers_pb2.Int32Value.FromString,
        )
        try:
            response: wrappers_pb2.Int32Value = call(wrappers_pb2.StringValue(), timeout=timeout_s)
        except grpc.RpcError as error:
            cause = error_of(error).message.rpartition(": ")[2]  # what comes before is gRPC's way there
            return ProcessHealth(name, address, Status.UNREACHABLE, cause)
    return ProcessHealth(name, address, _STATUS.get(response.value, Status.UNKNOWN))


def queue_state(scheduler: str, timeout_s: float) -> scheduler_pb2.GetQueueStateResponse:
    """Queues and engines as one scheduler sees them. Raises PagemeshError if it does not answer."""
    with grpc.insecure_channel(scheduler) as channel:
        request = scheduler_pb2.GetQueueStateRequest()
        try:
            return SchedulerServiceStub(channel).GetQueueState(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from None


def engines_of(scheduler: str, timeout_s: float) -> dict[str, str]:
    """Names by address of the engines that a scheduler knows; none if it cannot be asked."""
    try:
        state = queue_state(scheduler, timeout_s)
    except PagemeshError:
        return {}  # the scheduler's own row says so
    return {engine.address: engine.engine_id or "engine" for engine in state.engines}


def check_mesh(
    gateways: Sequence[str], tokenizers: Sequence[str], schedulers: Sequence[str], timeout_s: float
) -> list[ProcessHealth]:
    """Asks the processes named and every engine that the schedulers know."""
    engines: dict[str, str] = {}
    for scheduler in schedulers:
        engines |= engines_of(scheduler, timeout_s)
    places = [
        *(("gateway", address) for address in gateways),
        *(("tokenizer", address) for address in tokenizers),
        *(("scheduler", address) for address in schedulers),
        *((name, address) for address, name in engines.items()),
    ]
    return [check(name, address, timeout_s) for name, address in places]
