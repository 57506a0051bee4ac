"""Builds a gateway from its settings: the only place that does."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from pagemesh.v1 import engine_pb2, gateway_pb2, gateway_pb2_grpc, scheduler_pb2
from services.chassis.channels import open_channel
from services.chassis.server import Server
from services.chassis.tasks import Tasks
from services.chassis.telemetry import start_metrics, start_telemetry
from services.gateway.access.identity import Identities, KeysFileError
from services.gateway.history.sessions import Sessions
from services.gateway.history.store.memory import MemoryStore
from services.gateway.mesh import Mesh
from services.gateway.metrics import GatewayMetrics
from services.gateway.peers.addresses import Addresses, as_given, look_up
from services.gateway.peers.engine_fleet import EngineFleet
from services.gateway.peers.placement_client import PlacementClient
from services.gateway.peers.tokenizer_client import TokenizerPool
from services.gateway.running_requests import RunningRequests
from services.gateway.service import GatewayServicer
from services.gateway.settings import GatewaySettings

SERVICE_NAME = "pagemesh-gateway"
FULL_NAME = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name
OPEN_KEY = b"pagemesh: one tenant, nothing to keep apart"
"""Stands for the deployment key where every caller is the same tenant."""
READY_CHECK_S = 0.1
DRAIN_MARGIN_S = 1.0
"""Of the drain time, kept for the statuses of the requests that are cut."""

logger = logging.getLogger(__name__)


class ApiKeysFileError(Exception):
    """One line: path, cause, remedy."""


async def run_gateway(settings: GatewaySettings) -> int:
    """Serves until SIGTERM. Returns the process's exit code. Raises BindError, ApiKeysFileError."""
    registry = CollectorRegistry()
    identities, deployment_key = _identities(settings)
    telemetry = start_telemetry(SERVICE_NAME, settings)
    tasks = Tasks()
    mesh = _build_mesh(
        settings=settings,
        identities=identities,
        deployment_key=deployment_key,
        metrics=GatewayMetrics(registry),
        tasks=tasks,
        tracer=telemetry.tracer,
    )
    server = Server(settings, SERVICE_NAME, telemetry)
    servicer = GatewayServicer(mesh)
    server.add(gateway_pb2_grpc.add_GatewayServiceServicer_to_server, servicer, FULL_NAME)
    for check in ("tokenizer", "scheduler"):
        server.readiness.set(check, False)
    start_metrics(settings, registry)
    _follow_peers(settings, mesh)
    tasks.spawn(_watch_peers(server, mesh), "watch peers", critical=True)
    try:
        drain_s = max(0.0, settings.drain_s - DRAIN_MARGIN_S)
        return await server.run(on_drain=lambda: servicer.drain(drain_s))
    finally:
        await tasks.close()


def _build_mesh(
    *,
    settings: GatewaySettings,
    identities: Identities,
    deployment_key: bytes,
    metrics: GatewayMetrics,
    tasks: Tasks,
    tracer: Tracer,
) -> Mesh:
    rng, clock, boot_id = random.Random(), time.monotonic, secrets.token_hex(8)
    run_hello = engine_pb2.RunHello(gateway_id=settings.instance_id, boot_id=boot_id)
    place_hello = scheduler_pb2.PlaceHello(gateway_id=settings.instance_id, boot_id=boot_id)

    def report_reach(engine_id: str, engine_boot_id: str, is_reachable: bool) -> None:
        placement.report_reach(engine_id, engine_boot_id, is_reachable)

    fleet = EngineFleet(
        open_channel=_channel_opener(settings),
        hello=run_hello,
        tasks=tasks,
        rng=rng,
        on_reach=report_reach,
        on_unknown_tokens=metrics.stale_tokens.inc,
    )
    placement = PlacementClient(place_hello, fleet.unreachable, clock, settings.start_wait_s)
    store = MemoryStore(
        clock, ttl_s=settings.session_ttl_s, max_records_per_group=settings.max_sessions_per_tenant
    )
    return Mesh(
        settings=settings,
        deployment_key=deployment_key,
        identities=identities,
        tokenizers=TokenizerPool(),
        placement=placement,
        fleet=fleet,
        sessions=Sessions(store, deployment_key, lambda: secrets.token_urlsafe(24)),
        running=RunningRequests(clock),
        tasks=tasks,
        metrics=metrics,
        tracer=tracer,
        rng=rng,
        clock=clock,
        ready_by_s=clock() + settings.start_wait_s,
    )


def _follow_peers(settings: GatewaySettings, mesh: Mesh) -> None:
    open_to = _channel_opener(settings)

    async def keep_scheduler(address: str) -> None:
        async with open_to(address) as channel:
            await mesh.placement.keep(channel, address, mesh.rng)

    async def keep_tokenizer(address: str) -> None:
        async with open_to(address) as channel:
            await mesh.tokenizers.keep(channel, address, mesh.rng)

    find = look_up if settings.tls_ca is None else as_given
    for names, keep in ((settings.schedulers, keep_scheduler), (settings.tokenizers, keep_tokenizer)):
        addresses = Addresses(names, keep, mesh.tasks, settings.resolve_every_s, find)
        mesh.tasks.spawn(addresses.follow(), "follow addresses", critical=True)


async def _watch_peers(server: Server, mesh: Mesh) -> None:
    """Ready while a tokenizer and a scheduler answer; engines make a model's own health."""
    while True:
        server.readiness.set("tokenizer", mesh.tokenizers.is_up)
        server.readiness.set("scheduler", mesh.placement.is_up)
        offers = mesh.placement.models()
        for model in mesh.tokenizers.models():
            server.readiness.set_model(model, model in offers and offers[model].num_engines > 0)
        await asyncio.sleep(READY_CHECK_S)


def _channel_opener(settings: GatewaySettings) -> Callable[[str], grpc.aio.Channel]:
    return lambda address: open_channel(address, settings=settings)


def _identities(settings: GatewaySettings) -> tuple[Identities, bytes]:
    key = settings.deployment_key.get_secret_value().encode() or OPEN_KEY
    if settings.api_keys_file is None:
        logger.warning("no API keys file: every caller is the same tenant")
        return Identities.anonymous(key), key
    return _read_keys(settings.api_keys_file, key), key


def _read_keys(path: Path, key: bytes) -> Identities:
    try:
        return Identities.from_keys_file(key, path.read_text())
    except OSError as error:
        raise ApiKeysFileError(f"{path}: {error.strerror}; name a file that can be read") from error
    except (KeysFileError, UnicodeDecodeError) as error:
        raise ApiKeysFileError(f"{path}: {error}; mend the line") from error
