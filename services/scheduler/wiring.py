"""Builds a scheduler process from its settings: the only place that does."""

import random
import secrets

from prometheus_client import CollectorRegistry

from pagemesh.v1 import engine_pb2, scheduler_pb2, scheduler_pb2_grpc
from services.chassis.channels import open_channel
from services.chassis.server import Server
from services.chassis.tasks import Tasks
from services.chassis.telemetry import start_metrics, start_telemetry
from services.scheduler.core.placement import PlacementCore
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.service import SchedulerServicer
from services.scheduler.settings import SchedulerSettings
from services.scheduler.switchboard import Switchboard
from services.scheduler.watch import EngineWatch, EngineWatches, as_given, resolve

SERVICE = "pagemesh-scheduler"
FULL_NAME = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name


async def serve(settings: SchedulerSettings) -> int:
    """Runs the process. Raises BindError."""
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    start_metrics(settings, registry)
    telemetry = start_telemetry(SERVICE, settings)
    server = Server(settings, SERVICE, telemetry)
    boot_id = secrets.token_hex(8)
    core = PlacementCore(settings.limits, random.Random().random)
    metrics.watch_waiting(core.waiting)
    board = Switchboard(core, boot_id, metrics, telemetry.tracer, server.readiness)
    servicer = SchedulerServicer(board, settings.instance_id)
    server.add(scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, servicer, FULL_NAME)
    tasks = Tasks()
    watches = _watches(settings, board, tasks)
    tasks.spawn(watches.run(settings.resolve_every_s), "watches", critical=True)
    try:
        return await server.run(on_drain=board.drain)
    finally:
        await tasks.close()


def _watches(settings: SchedulerSettings, board: Switchboard, tasks: Tasks) -> EngineWatches:
    hello = engine_pb2.WatchHello(scheduler_id=settings.instance_id, boot_id=board.boot_id)

    def watch(address: str) -> EngineWatch:
        return EngineWatch(address, board, lambda target: open_channel(target, settings=settings), hello)

    look_up = resolve if settings.tls_ca is None else as_given
    return EngineWatches(settings.engines, look_up, watch, tasks)
