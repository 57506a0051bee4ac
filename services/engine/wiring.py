"""Builds an engine process from its settings: the only place that does."""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass

from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from pagemesh.v1 import engine_pb2, engine_pb2_grpc
from services.chassis.address import split_address
from services.chassis.bind import check_free
from services.chassis.readiness import Readiness
from services.chassis.server import Server
from services.chassis.tasks import Tasks
from services.chassis.telemetry import start_metrics, start_telemetry
from services.contract.model_folder import ModelFolder
from services.engine.core.limits import Limits
from services.engine.core.outcome import ReturnReason, StreamNews
from services.engine.core.running_set import RunningSet
from services.engine.declaration import declare
from services.engine.executors.registry import ExecutorRequest, MadeExecutor, make_executor
from services.engine.loop import EngineLoop
from services.engine.memory import available_bytes, check_memory, pool_size
from services.engine.metrics import EngineMetrics
from services.engine.run_streams import RunStreams
from services.engine.run_words import StepTimes
from services.engine.service import Engine, EngineServicer
from services.engine.settings import EngineSettings
from services.engine.spans import SequenceSpans
from services.engine.step import ExecutorSpec
from services.engine.step_runner import StepRunner
from services.engine.watchers import Watchers

SERVICE = "pagemesh-engine"
FULL_NAME = engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
RETURN_MARGIN_S = 1.0
"""Of the drain time, kept to return what still runs."""
WATCHDOG_S = 0.5

logger = logging.getLogger(__name__)


async def serve(settings: EngineSettings) -> int:
    """Runs the process. Raises what its user can mend: see __main__."""
    # Before the model, which may take long to load.
    check_free(*split_address(settings.listen))
    made = await asyncio.to_thread(_make, settings)
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    start_metrics(settings, registry)
    telemetry = start_telemetry(SERVICE, settings)
    server, servicer, tasks = Server(settings, SERVICE, telemetry), EngineServicer(), Tasks()
    server.add(engine_pb2_grpc.add_EngineServiceServicer_to_server, servicer, FULL_NAME)
    server.readiness.set("warmed up", False)
    server.readiness.set("step in time", True)
    server.readiness.set_model(settings.served_name, False)
    runner = StepRunner(made.executor, settings.poison_freed_blocks)
    process = _Process(settings, made, runner, server, servicer, tasks, metrics, telemetry.tracer)
    start = asyncio.create_task(process.start(), name="load the model")
    start.add_done_callback(process.on_started)
    try:
        code = await server.run(on_drain=process.drain)
        if start.done():
            start.result()
        return code
    finally:
        start.cancel()
        await tasks.close()
        await runner.close()


def _make(settings: EngineSettings) -> MadeExecutor:
    """Finds the model and checks that it fits; blocks."""
    request = ExecutorRequest(
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        attention=settings.attention,
        block_size=settings.block_size,
        num_threads=settings.num_threads,
        max_model_len=settings.max_model_len,
        script=settings.script,
        max_sequences=settings.max_sequences,
        unfused=settings.unfused_names,
        is_invariant=settings.batch_invariant,
        weights=settings.weights,
        kv_dtype=settings.kv_dtype,
    )
    made = make_executor(settings.executor, request)
    if made.folder is not None and settings.device == "cpu":
        needed = _weight_bytes(made.folder, made.dtype)
        check_memory(f"{made.folder.path}: the model", needed, available_bytes())
    return made


def _weight_bytes(folder: ModelFolder, dtype: str) -> int:
    """About; the files hold two bytes a weight unless the configuration says float32."""
    stored = 4 if folder.config.get("dtype", folder.config.get("torch_dtype")) == "float32" else 2
    size = sum(path.stat().st_size for path in folder.weights)
    return size * (4 if dtype == "float32" else 2) // stored


@dataclass(slots=True)
class _Process:
    """The life of one engine: loaded, warmed up, served, drained."""

    settings: EngineSettings
    made: MadeExecutor
    runner: StepRunner
    server: Server
    servicer: EngineServicer
    tasks: Tasks
    metrics: EngineMetrics
    tracer: Tracer
    engine: Engine | None = None

    async def start(self) -> None:
        """Becomes ready once an id was drawn."""
        spec = await self.runner.load()
        limits = _limits(self.settings, spec)
        if self.settings.device == "cpu":
            check_memory("the KV pool", limits.num_blocks * spec.bytes_per_block, available_bytes())
        await self.runner.allocate(limits.num_blocks)
        self.metrics.note_load(spec, limits.num_blocks)
        await self.runner.warm_up()
        self.engine = self._build(spec, limits)
        self.servicer.attach(self.engine)
        self.tasks.spawn(self.engine.loop.run(), "engine loop", critical=True)
        self.tasks.spawn(self._watch_steps(self.engine.loop), "step watchdog", critical=True)
        self.server.readiness.set_model(self.settings.served_name, True)
        self.server.readiness.set("warmed up", True)

    def on_started(self, start: "asyncio.Task[None]") -> None:
        """A model that cannot be loaded ends the process."""
        if not start.cancelled() and start.exception() is not None:
            self.server.request_stop()

    async def drain(self) -> None:
        """Takes nothing new, finishes what it can in time, gives the rest back."""
        if self.engine is None:
            return
        loop, running_set = self.engine.loop, self.engine.loop.running_set
        running_set.start_drain()
        self.engine.watchers.report_now()
        margin_s = min(RETURN_MARGIN_S, self.settings.drain_s / 4)
        try:
            async with asyncio.timeout(self.settings.drain_s - margin_s):
                await loop.wait_idle()
        except TimeoutError:
            logger.warning("returning what still runs", extra={"sequences": len(running_set.roster)})
            running_set.return_all(ReturnReason.DRAINING, loop.now_us)
        loop.publish()
        await self.engine.runs.flush()

    def _build(self, spec: ExecutorSpec, limits: Limits) -> Engine:
        settings, boot_id = self.settings, secrets.token_hex(8)
        info = declare(
            engine_id=settings.instance_id,
            boot_id=boot_id,
            address=settings.address or self.server.address,
            model=settings.served_name,
            revision=self.made.revision,
            spec=spec,
            limits=limits,
        )
        running_set = RunningSet(limits, self.made.revision, boot_id, settings.seed)
        spans = SequenceSpans(self.tracer, settings.served_name)
        runs = RunStreams(running_set, spans, _now_us)
        loop = EngineLoop(
            running_set,
            self.runner,
            lag=settings.lag,
            clock=_now_us,
            tell=self._tell,
            note_step=self.metrics.note_step,
        )
        watchers = Watchers(running_set, lambda: loop.step_clock.mean_us)
        self.metrics.follow(running_set, info, lambda: runs.num_open)
        return Engine(info, loop, runs, watchers)

    def _tell(self, news: dict[int, StreamNews], times: StepTimes) -> None:
        assert self.engine is not None
        self.engine.runs.tell(news, times)
        self.engine.watchers.note_step()

    async def _watch_steps(self, loop: EngineLoop) -> None:
        while True:
            await asyncio.sleep(WATCHDOG_S)
            note_overdue(loop, self.server.readiness)


def note_overdue(loop: EngineLoop, readiness: Readiness) -> None:
    """A step that does not come back takes the process out of service until it does."""
    readiness.set("step in time", not loop.step_clock.is_overdue(loop.now_us))


def _limits(settings: EngineSettings, spec: ExecutorSpec) -> Limits:
    max_model_len = min(spec.max_model_len, settings.max_model_len or spec.max_model_len)
    num_blocks = pool_size(
        settings.num_blocks,
        settings.kv_memory_mib,
        spec.bytes_per_block,
        settings.max_sequences,
        -(-max_model_len // settings.block_size),
    )
    return Limits(
        num_blocks=num_blocks,
        block_size=settings.block_size,
        max_sequences=settings.max_sequences,
        max_batch_tokens=settings.max_batch_tokens,
        chunk_tokens=min(settings.chunk_tokens, settings.max_batch_tokens),
        max_model_len=max_model_len,
        vocab_size=spec.vocab_size,
        max_ids_per_step=spec.max_ids_per_step,
        window=spec.window,
    )


def _now_us() -> int:
    return time.monotonic_ns() // 1000
