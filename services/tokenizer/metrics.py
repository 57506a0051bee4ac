"""The tokenizer's instruments."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.contract.errors import MeshError

ENCODE_BUCKETS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.0008,
    0.0015,
    0.003,
    0.006,
    0.0125,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    4.0,
)


class TokenizerMetrics:
    """Instruments in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.encode_seconds = Histogram(
            "pagemesh_tokenizer_encode_seconds",
            "Time of an Encode call inside the service",
            buckets=ENCODE_BUCKETS_S,
            registry=registry,
        )
        self.requests = Counter(
            "pagemesh_tokenizer_requests_total",
            "Calls by method and outcome (ok, cancelled or an error's reason)",
            ["method", "outcome"],
            registry=registry,
        )
        self.cache_lookups = Counter(
            "pagemesh_tokenizer_cache_lookups_total",
            "Lookups in the encode caches",
            ["cache", "result"],
            registry=registry,
        )
        self.encoded_tokens = Counter(
            "pagemesh_tokenizer_encoded_tokens_total", "Tokens of encoded prompts", registry=registry
        )
        self.cached_tokens = Counter(
            "pagemesh_tokenizer_cached_tokens_total", "Tokens that came from a cache", registry=registry
        )
        self.cache_bytes = Gauge(
            "pagemesh_tokenizer_cache_bytes", "Bytes held by the encode caches", ["cache"], registry=registry
        )
        self.template_restarts = Gauge(
            "pagemesh_tokenizer_template_restarts",
            "Times that the template's process was replaced",
            registry=registry,
        )

    def note_lookups(self, cache: str, num_hits: int, num_misses: int) -> None:
        """Counts lookups."""
        if num_hits:
            self.cache_lookups.labels(cache, "hit").inc(num_hits)
        if num_misses:
            self.cache_lookups.labels(cache, "miss").inc(num_misses)

    @contextmanager
    def request(self, method: str) -> Iterator[None]:
        """Counts one call by how it ends."""
        outcome = "INTERNAL"
        try:
            yield
            outcome = "ok"
        except MeshError as error:
            outcome = error.reason.value
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self.requests.labels(method, outcome).inc()
