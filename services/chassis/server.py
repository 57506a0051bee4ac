"""A gRPC server's life: bind, become ready, serve, drain, end. It knows no service's words."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.chassis.address import join_address, split_address
from services.chassis.bind import BindError, check_free
from services.chassis.channels import Options, min_ping_gap_ms, shared_options
from services.chassis.guard import Guard
from services.chassis.health import HealthServicer
from services.chassis.liveness import watch_loop
from services.chassis.readiness import Readiness
from services.chassis.settings import ServiceSettings
from services.chassis.telemetry import Telemetry

EXIT_BIND = 3
EXIT_FORCED = 1
STOP_GRACE_S = 1.0
"""After on_drain the work is done: only the transport's last bytes and endless watches are left."""

GRPC_LOGGER = "grpc._cython.cygrpc"

AddServicer = Callable[[Any, grpc.aio.Server], None]
OnDrain = Callable[[], Awaitable[None]]

logger = logging.getLogger(__name__)


class Server:
    """Serves the added servicers with health and reflection until SIGTERM or SIGINT."""

    def __init__(self, settings: ServiceSettings, service_name: str, telemetry: Telemetry) -> None:
        self.readiness = Readiness()
        self.readiness.set("listening", False)
        self._settings = settings
        self._service_name = service_name
        self._telemetry = telemetry
        self._servicers: list[tuple[AddServicer, Any, str]] = []
        self._stop = asyncio.Event()
        self._signals_seen: set[int] = set()
        self._server: grpc.aio.Server | None = None
        self._address: str | None = None

    @property
    def address(self) -> str:
        """host:port that it listens on; known once started."""
        assert self._address is not None, "the server has not started"
        return self._address

    def add(self, add_servicer: AddServicer, servicer: Any, full_service_name: str) -> None:
        """Registers a servicer, before the start."""
        assert self._server is None, "the server has started"
        self._servicers.append((add_servicer, servicer, full_service_name))

    async def start(self) -> None:
        """Binds and answers; health says NOT_SERVING until the checks hold. Raises BindError."""
        logging.getLogger(GRPC_LOGGER).addFilter(_is_fault)
        server = grpc.aio.server(interceptors=[Guard()], options=server_options(self._settings))
        names = [name for _, _, name in self._servicers]
        for add_servicer, servicer, _ in self._servicers:
            add_servicer(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(self.readiness, names), server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection([*names, health_name, reflection.SERVICE_NAME], server)
        self._address = self._bind(server)
        await server.start()
        self._server = server
        self.readiness.set("listening", True)

    async def stop(self, on_drain: OnDrain | None = None) -> None:
        """Health flips first, then the service finishes its work, then the calls end and spans are sent."""
        assert self._server is not None, "the server has not started"
        self.readiness.drain()
        try:
            if on_drain is not None:
                await self._drain(on_drain)
        finally:
            grace_s = self._settings.drain_s if on_drain is None else STOP_GRACE_S
            await self._server.stop(grace_s)
            await asyncio.to_thread(self._telemetry.shutdown)

    async def run(self, *, on_drain: OnDrain | None = None) -> int:
        """Serves until a signal or request_stop. Returns the process's exit code."""
        try:
            await self.start()
        except BindError as error:
            print(f"{self._service_name}: {error}", file=sys.stderr, flush=True)
            return EXIT_BIND
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        helpers = (
            asyncio.create_task(self._announce(), name="announce ready"),
            asyncio.create_task(watch_loop(loop.time), name="watch event loop"),
        )
        await self._stop.wait()
        for helper in helpers:
            helper.cancel()
        await self.stop(on_drain)
        return 0

    def request_stop(self) -> None:
        """Ends run as SIGTERM does."""
        self._stop.set()

    def _on_signal(self, number: int) -> None:
        if number in self._signals_seen:
            # Only the same one again: a terminal's SIGINT is often followed by a supervisor's SIGTERM.
            logger.warning("second signal; ending at once", extra={"signal": signal.Signals(number).name})
            os._exit(EXIT_FORCED)
        self._signals_seen.add(number)
        logger.info("draining", extra={"signal": signal.Signals(number).name})
        self.request_stop()

    async def _announce(self) -> None:
        await self.readiness.wait_ready()
        # What is here now stays. A full collection would walk through it and hold every stream up: for 20 ms
        # in a gateway, for 120 ms in an engine with torch.
        gc.collect()
        gc.freeze()
        print(f"READY {self._service_name} {self.address}", file=sys.stderr, flush=True)

    async def _drain(self, on_drain: OnDrain) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await on_drain()
        except TimeoutError:
            logger.warning("drain took too long; ending calls", extra={"drain_s": self._settings.drain_s})

    def _bind(self, server: grpc.aio.Server) -> str:
        host, port = split_address(self._settings.listen)
        check_free(host, port)
        address = join_address(host, port)
        try:
            bound_port = self._add_port(server, address)
        except RuntimeError as error:
            raise BindError(address, "it was taken meanwhile") from error
        return join_address(host, bound_port)

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        cert, key = self._settings.tls_cert, self._settings.tls_key
        if cert is None or key is None:
            return server.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
        return server.add_secure_port(address, credentials)


def _is_fault(record: logging.LogRecord) -> bool:
    """False for what gRPC logs with a traceback when a call's deadline passes just as its last message or
    status is written: the write fails before the library knows that the caller is gone.
    """
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


def server_options(settings: ServiceSettings) -> Options:
    """What `channels` sets, and what only a server can."""
    return [
        *shared_options(settings),
        # Two processes on one port would share its calls silently.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_gap_ms(settings)),
    ]
