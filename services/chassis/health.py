"""grpc.health.v1 answered from Readiness: "" and the services for the process, "model/<name>" for a model.

Not the library's servicer: there one watcher that does not read blocks every change of state.
"""

from collections.abc import Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.readiness import Readiness

MODEL_PREFIX = "model/"


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Probes speak for the process itself; a model that is away does not take the process down."""

    def __init__(self, readiness: Readiness, service_names: Collection[str]) -> None:
        self._readiness = readiness
        self._service_names = frozenset({"", *service_names})

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            # Between the status and here nothing is awaited but the write: look again before waiting.
            if self._status(request.service) == told:
                await self._readiness.changed()

    def _status(self, name: str) -> Any:
        is_ok: bool | None = None
        if name in self._service_names:
            is_ok = self._readiness.is_ready
        elif name.startswith(MODEL_PREFIX):
            is_ok = self._readiness.model(name.removeprefix(MODEL_PREFIX))
        states = health_pb2.HealthCheckResponse
        if is_ok is None:
            return states.SERVICE_UNKNOWN
        return states.SERVING if is_ok else states.NOT_SERVING
