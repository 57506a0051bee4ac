"""The engine's instruments. Gauges and counters are read at the scrape and cost a step nothing."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagemesh.v1 import engine_pb2, generation_pb2
from services.contract.priority import Priority
from services.engine.core.running_set import Plan, RunningSet
from services.engine.step import ExecutorSpec, StepResult

STEP_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class EngineMetrics:
    """Instruments in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._step_seconds = Histogram(
            "pagemesh_engine_step_seconds", "Time of a model step", buckets=STEP_BUCKETS_S, registry=registry
        )
        self._device_seconds = Histogram(
            "pagemesh_engine_device_seconds",
            "Of a model step, time on the compute device",
            buckets=STEP_BUCKETS_S,
            registry=registry,
        )
        self._step_tokens = Histogram(
            "pagemesh_engine_step_tokens", "Rows through the model", buckets=TOKEN_BUCKETS, registry=registry
        )
        self._memory = Gauge(
            "pagemesh_engine_memory_bytes",
            "Memory by kind: weights, kv (the whole pool), activations (the most that a step took)",
            ["kind"],
            registry=registry,
        )
        self._step_sequences = Histogram(
            "pagemesh_engine_step_sequences", "Sequences in a step", buckets=TOKEN_BUCKETS, registry=registry
        )

    def note_step(self, plan: Plan, result: StepResult) -> None:
        """A step was committed."""
        self._step_seconds.observe(result.step_us / 1e6)
        self._device_seconds.observe(result.device_us / 1e6)
        self._step_tokens.observe(plan.num_tokens)
        self._step_sequences.observe(len(plan.rows))
        self._memory.labels("activations").set(result.activation_bytes)

    def note_load(self, spec: ExecutorSpec, num_blocks: int) -> None:
        """Weights and pool are in memory."""
        self._memory.labels("weights").set(spec.weight_bytes)
        self._memory.labels("kv").set(num_blocks * spec.bytes_per_block)
        self._memory.labels("activations").set(0)

    def follow(
        self, running_set: RunningSet, info: engine_pb2.EngineInfo, num_gateways: Callable[[], int]
    ) -> None:
        """Shows a running set from now on."""
        self._registry.register(_RunningSetCollector(running_set, info, num_gateways))


class _RunningSetCollector(Collector):
    """Reads plain counters from the scraper's thread; none of them is written by it."""

    def __init__(
        self, running_set: RunningSet, info: engine_pb2.EngineInfo, num_gateways: Callable[[], int]
    ) -> None:
        self._set = running_set
        self._info = info
        self._num_gateways = num_gateways

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._outcomes()
        yield from self._tokens()
        yield self._declaration()

    def _gauges(self) -> Iterator[Metric]:
        roster, pool = self._set.roster, self._set.cache.pool
        for state, sequences in (("running", list(roster.running)), ("waiting", list(roster.waiting))):
            counts = {
                priority.name.lower(): sum(it.admission.priority is priority for it in sequences)
                for priority in Priority
            }
            yield _gauge(f"{state}_sequences", f"Sequences {state}, by class", "priority", counts)
        blocks = {"used": pool.num_used, "cached": pool.num_cached, "free": pool.num_free}
        yield _gauge("kv_blocks", "KV blocks by state", "state", blocks)
        yield GaugeMetricFamily("pagemesh_engine_run_streams", "Open Run streams", self._num_gateways())

    def _outcomes(self) -> Iterator[Metric]:
        totals = self._set.totals
        yield _counter("admitted", "Sequences admitted", totals.admitted)
        refused = {refusal.name.lower(): count for refusal, count in totals.refused.items()}
        yield _counters("refused", "Admits refused, by reason", "reason", refused)
        ended = {reason.name.lower(): count for reason, count in totals.ended.items()}
        yield _counters("ended", "Sequences ended, by reason", "reason", ended | {"stream": totals.dropped})
        returned = {reason.name.lower(): count for reason, count in totals.returned.items()}
        yield _counters("returned", "Sequences given back, by reason", "reason", returned)
        yield _counter("preemptions", "Preemptions by recompute", totals.preemptions)
        yield _counter("evictions", "Cached blocks evicted", self._set.cache.num_evictions)
        yield _counter("failed_steps", "Steps that raised", totals.steps_failed)

    def _tokens(self) -> Iterator[Metric]:
        totals = self._set.totals
        yield _counter("computed_tokens", "Rows that went through the model", totals.tokens_computed)
        yield _counter("recomputed_tokens", "Of those, rows computed again", totals.tokens_recomputed)
        yield _counter("cached_tokens", "Ids found in the prefix cache", totals.tokens_cached)
        yield _counter("drawn_tokens", "Ids drawn", totals.tokens_drawn)
        yield _counter("discarded_tokens", "Ids drawn after an end", totals.tokens_discarded)

    def _declaration(self) -> Metric:
        fingerprint = self._info.fingerprint
        tier = generation_pb2.ExactnessTier.Name(self._info.tier)
        labels = {
            "engine_id": self._info.engine_id,
            "model": self._info.model,
            "executor": fingerprint.executor,
            "dtype": fingerprint.dtype,
            "kernel_path": fingerprint.kernel_path,
            "fingerprint": self._info.fingerprint_hash,
            "row_invariant": str(self._info.row_invariant).lower(),
            "tier": tier.removeprefix("EXACTNESS_TIER_").lower(),
        }
        info = GaugeMetricFamily("pagemesh_engine_info", "What the engine declares", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        return info


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"pagemesh_engine_{name}", text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"pagemesh_engine_{name}", text, value)


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"pagemesh_engine_{name}", text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
