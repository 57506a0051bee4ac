"""The figures of a run, from its records. Pure; the definitions are those of docs/benchmark.md."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.load.distribution import Distribution, distribution
from bench.load.meter import Window
from bench.load.record import RequestRecord, Seconds
from bench.load.spec import Slo


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """The server's counts of output tokens against the events that arrived."""

    num_reported: int
    num_counted: int
    num_different: int
    """Requests whose two counts differ: their server sends several tokens in an event, or loses one."""
    num_unreported: int
    """Requests for which the server said no count."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are of measured requests that ended well, rates of the window."""

    window_s: float
    num_requests: int
    """Measured."""
    num_failed: int
    errors: dict[str, int]
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    """Requests per second that met the SLO; without one, all that ended well."""
    slo_share: float
    """Measured requests that met it; a failed one did not."""
    ttft_ms: Distribution
    itl_ms: Distribution
    ms_per_token: Distribution
    elapsed_ms: Distribution
    server_ttft_ms: Distribution
    server_itl_ms: Distribution
    send_lag_ms: Distribution
    """How much later than intended a request was sent: the tool's own lateness."""
    prompt_tokens: Distribution
    output_tokens: Distribution
    cached_tokens: Distribution
    worst_stall_ms: float | None
    """Longest time between two token events of a stream."""
    rhythm: float | None
    """Standard deviation of all times between token events over their mean."""
    token_check: TokenCheck
    peak_in_flight: int
    own_cpu_share: float
    """Cores that the tool used in the window."""
    own_cpu_us_per_token: float | None


def summarize(records: Sequence[RequestRecord], window: Window, slo: Slo) -> Summary:
    measured = [record for record in records if record.is_measured]
    good = [record for record in measured if not record.error]
    gaps_ms = _joined(record.gaps_s for record in good) * 1000
    itl = distribution(gaps_ms)
    tokens_per_s = _tokens_inside(records, window) / window.length_s
    ended = [r for r in records if not r.error and window.begin_s <= r.ended_s <= window.end_s]
    cpu_share = window.own_cpu_s / window.marked_s if window.marked_s else 0.0
    return Summary(
        window_s=window.length_s,
        num_requests=len(measured),
        num_failed=len(measured) - len(good),
        errors=dict(Counter(record.error for record in measured if record.error)),
        output_tokens_per_s=tokens_per_s,
        requests_per_s=len(ended) / window.length_s,
        goodput_per_s=sum(meets(record, slo) for record in ended) / window.length_s,
        slo_share=sum(meets(record, slo) for record in good) / len(measured) if measured else 0.0,
        ttft_ms=_over(good, lambda record: record.ttft_s * 1000),
        itl_ms=itl,
        ms_per_token=_over(good, lambda record: _thousandfold(record.s_per_token)),
        elapsed_ms=_over(good, lambda record: record.elapsed_s * 1000),
        server_ttft_ms=_over(good, lambda record: _thousandfold(record.server_ttft_s)),
        server_itl_ms=distribution(_joined(record.server_gaps_s for record in good) * 1000),
        send_lag_ms=_over(measured, lambda record: (record.sent_s - record.intended_s) * 1000),
        prompt_tokens=_over(good, lambda record: record.num_prompt_tokens),
        output_tokens=_over(good, lambda record: record.num_tokens),
        cached_tokens=_over(good, lambda record: record.num_cached_tokens),
        worst_stall_ms=itl.largest,
        rhythm=itl.std / itl.mean if itl.std is not None and itl.mean else None,
        token_check=_check(good),
        peak_in_flight=_peak(records),
        own_cpu_share=cpu_share,
        own_cpu_us_per_token=cpu_share / tokens_per_s * 1e6 if tokens_per_s and window.marked_s else None,
    )


def meets(record: RequestRecord, slo: Slo) -> bool:
    """Of a request that ended well."""
    if slo.ttft_ms is not None and record.ttft_s * 1000 > slo.ttft_ms:
        return False
    gaps_s = record.gaps_s
    return slo.itl_ms is None or not len(gaps_s) or float(gaps_s.mean()) * 1000 <= slo.itl_ms


def _tokens_inside(records: Sequence[RequestRecord], window: Window) -> float:
    """Output tokens that arrived in the window. A server's count beyond its events is spread over them."""
    total = 0.0
    for record in records:
        times = record.token_times_s
        inside = (window.begin_s <= times) & (times <= window.end_s)
        if record.num_counted:
            total += record.num_tokens * float(record.token_counts[inside].sum()) / record.num_counted
    return total


def _check(records: Sequence[RequestRecord]) -> TokenCheck:
    reported = [record for record in records if record.num_output_tokens is not None]
    return TokenCheck(
        sum(record.num_output_tokens or 0 for record in reported),
        sum(record.num_counted for record in reported),
        sum(record.num_output_tokens != record.num_counted for record in reported),
        len(records) - len(reported),
    )


def _peak(records: Sequence[RequestRecord]) -> int:
    edges = sorted([(r.sent_s, 1) for r in records] + [(r.ended_s, -1) for r in records])
    return int(np.cumsum([change for _, change in edges]).max()) if edges else 0


def _over(
    records: Sequence[RequestRecord], value_of: Callable[[RequestRecord], float | None]
) -> Distribution:
    values = [value_of(record) for record in records]
    return distribution([value for value in values if value is not None])


def _joined(parts: Iterable[Seconds]) -> Seconds:
    return np.concatenate([np.empty(0), *parts])


def _thousandfold(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
