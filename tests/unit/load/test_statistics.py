"""Percentiles, windows, goodput and bootstrap intervals, against numpy and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from bench.load.bootstrap import Interval, Verdict, paired_ratio, pooled_ratio, verdict
from bench.load.distribution import distribution
from bench.load.meter import Mark, Meter, Window, merged
from bench.load.record import RequestRecord
from bench.load.spec import Slo
from bench.load.summary import meets, summarize


def record(intended_s=0.0, first_s=1.0, gap_s=0.1, num_tokens=5, **fields):
    times = first_s + gap_s * np.arange(num_tokens)
    ended_s = float(times[-1])
    defaults = {"is_measured": True, "token_times_s": times, "token_counts": np.ones(num_tokens, np.int64)}
    return RequestRecord(intended_s, fields.pop("sent_s", intended_s), ended_s, **{**defaults, **fields})


def window(begin_s=0.0, end_s=10.0, own_cpu_s=1.0):
    return Window(begin_s, end_s, own_cpu_s, end_s - begin_s)


def p95(samples):
    return float(np.percentile(samples, 95))


def test_percentiles_are_numpys_and_need_their_samples():
    values = np.random.default_rng(0).lognormal(size=5000)
    found = distribution(values)
    assert (found.p50, found.p95, found.p99) == tuple(np.percentile(values, [50, 95, 99]))
    assert (found.mean, found.std, found.largest) == (values.mean(), values.std(), values.max())
    assert distribution(values[:999]).p99 is None and distribution(values[:1000]).p99 is not None
    assert distribution(values[:99]).p50 is None and distribution(values[:100]).p95 is not None
    assert distribution([]).mean is None


def test_latency_counts_from_the_intended_time():
    late = record(intended_s=2.0, sent_s=5.0, first_s=5.5, gap_s=0.5, num_tokens=3)
    assert (late.ttft_s, late.elapsed_s, late.s_per_token) == (3.5, 4.5, 0.5)
    summary = summarize([late], window(), Slo())
    assert summary.send_lag_ms.largest == 3000 and summary.ttft_ms.mean == 3500


def test_only_tokens_and_ends_inside_the_window_make_rates():
    before = record(first_s=-0.25, gap_s=0.1, num_tokens=5, is_measured=False)  # two of five inside
    inside = record(first_s=3.0)
    after = record(first_s=9.85, gap_s=0.1)  # two of five inside
    summary = summarize([before, inside, after], window(), Slo())
    assert summary.output_tokens_per_s == pytest.approx((2 + 5 + 2) / 10)
    assert summary.requests_per_s == pytest.approx(2 / 10)
    assert summary.num_requests == 2 and summary.ttft_ms.num_samples == 2


def test_a_servers_count_is_spread_over_the_events():
    merged_events = record(first_s=9.5, gap_s=0.25, num_tokens=4, num_output_tokens=8)
    summary = summarize([merged_events], window(), Slo())
    assert summary.output_tokens_per_s == pytest.approx(8 * 3 / 4 / 10)
    assert merged_events.s_per_token == pytest.approx(0.75 / 7)


def test_goodput_needs_both_limits_and_failures_are_never_good():
    slow_start, slow_pace, good = record(first_s=2.0), record(first_s=0.5, gap_s=0.3), record(first_s=0.5)
    slo = Slo(ttft_ms=1500, itl_ms=200)
    assert [meets(each, slo) for each in (slow_start, slow_pace, good)] == [False, False, True]
    failed = RequestRecord(0.0, 0.0, 1.0, True, error="gone")
    summary = summarize([slow_start, slow_pace, good, failed], window(), slo)
    assert summary.goodput_per_s == pytest.approx(0.1) and summary.requests_per_s == pytest.approx(0.3)
    assert summary.slo_share == pytest.approx(0.25) and summary.errors == {"gone": 1}


def test_the_worst_stall_and_the_rhythm_are_of_all_gaps():
    steady = record(num_tokens=101, gap_s=0.1)
    stalled = record(token_times_s=np.array([1.0, 1.1, 3.1]), token_counts=np.ones(3, np.int64))
    summary = summarize([steady, stalled], window(), Slo())
    gaps = np.array([0.1] * 101 + [2.0])
    assert summary.worst_stall_ms == pytest.approx(2000)
    assert summary.rhythm == pytest.approx(gaps.std() / gaps.mean())


def test_the_tools_own_cpu_is_of_the_window_and_per_token():
    summary = summarize([record(first_s=1.0, num_tokens=50, gap_s=0.01)], window(own_cpu_s=0.5), Slo())
    assert summary.own_cpu_share == pytest.approx(0.05)
    assert summary.own_cpu_us_per_token == pytest.approx(0.5 / 50 * 1e6)


def test_windows_of_processes_meet_where_all_were_at_full_load():
    both = merged([Window(1.0, 9.0, 0.5, 8.0), Window(2.0, 10.0, 0.7, 8.0)])
    assert both == Window(2.0, 9.0, 1.2, 8.0)


def test_the_meter_admits_warm_up_then_measures_then_closes():
    meter = Meter(2, 3, None)
    admitted = [meter.admit(Mark(at_s, at_s / 10)) for at_s in range(7)]
    assert admitted == [False, False, True, True, True, None, None]
    found = meter.window(99.0)
    assert found == Window(2.0, 5.0, pytest.approx(0.3), 3.0) and meter.num_measured == 3


def test_an_interval_holds_the_true_ratio_as_often_as_it_says():
    dice = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        machine = dice.normal(0, 0.5, 7)  # slow and fast rounds: in both sides, so that pairs cancel them
        baseline = np.exp(machine + dice.normal(0, 0.05, 7))
        target = 1.3 * np.exp(machine + dice.normal(0, 0.05, 7))
        found = paired_ratio(target, baseline)
        assert found.low <= found.ratio <= found.high and found.high / found.low < 1.5
        hits += found.low <= 1.3 <= found.high
    assert hits / 200 == pytest.approx(0.95, abs=0.05)


def test_an_interval_of_many_rounds_is_as_wide_as_scipys_t():
    dice = np.random.default_rng(1)
    logs = dice.normal(0.2, 0.1, 40)
    found = paired_ratio(np.exp(logs), np.ones(40))
    expected = stats.t.interval(0.95, 39, logs.mean(), stats.sem(logs))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(expected, abs=0.01)
    assert found.ratio == pytest.approx(math.exp(logs.mean()))


def test_pooled_samples_are_resampled_by_round():
    """A P95 that one round in six makes is unsure, however many samples each round has."""
    dice = np.random.default_rng(2)
    baseline = [dice.normal(100, 1, 400) for _ in range(6)]
    again = [dice.normal(100, 1, 400) for _ in range(6)]
    same, odd = (pooled_ratio(target, baseline, p95) for target in (again, [*baseline[:5], baseline[5] * 3]))
    assert same.ratio == pytest.approx(1, abs=0.01) and same.high / same.low < 1.02
    assert odd.ratio > 2 and odd.low == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("interval", "is_more_better", "expected"),
    [
        (Interval(1.2, 1.1, 1.3, 5), True, Verdict.BETTER),
        (Interval(1.2, 1.1, 1.3, 5), False, Verdict.WORSE),
        (Interval(0.8, 0.7, 0.9, 5), True, Verdict.WORSE),
        (Interval(1.2, 0.9, 1.5, 5), True, Verdict.SAME),
        (Interval(1.01, 1.005, 1.015, 5), True, Verdict.SAME),
        (Interval(1.2, 1.1, 1.3, 4), True, None),
    ],
)
def test_a_verdict_needs_rounds_an_interval_and_a_change_that_matters(interval, is_more_better, expected):
    assert verdict(interval, is_more_better=is_more_better) is expected


def test_a_single_round_has_no_interval():
    found = paired_ratio([2.0], [1.0])
    assert found.ratio == pytest.approx(2.0) and math.isnan(found.low)
