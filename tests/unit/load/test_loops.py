"""Closed and open loops on a virtual clock: when requests are sent, what is measured, what a stall does."""

import asyncio
import itertools
import json

import numpy as np
import pytest

from bench.load.arrivals import intended_times
from bench.load.drivers.driver import RequestError
from bench.load.run import EmptyRunError, measure_here
from bench.load.spec import Arrivals, ClosedLoop, Inputs, LoadSpec, OpenLoop, Replay, SpecError
from tests.support.timed_driver import TimedDriver
from tests.support.virtual_loop import run_virtually

REQUEST_S = 0.1 + 9 * 0.01
"""Of ten tokens."""


def run_of(driver, **fields):
    spec = LoadSpec(target="none", max_tokens=10, **{"num_warmup": 0, **fields})
    return run_virtually(measure_here(spec, driver))


def test_a_closed_loop_keeps_so_many_running_and_counts_exactly():
    driver = TimedDriver()
    run = run_of(driver, load=ClosedLoop(4), num_requests=40, num_warmup=8)
    assert driver.most_running == 4 and run.summary.peak_in_flight == 4
    assert (run.summary.num_requests, len(run.requests), len(driver.turns)) == (40, 48, 48)
    assert not driver.is_open
    assert run.summary.output_tokens_per_s == pytest.approx(4 * 10 / REQUEST_S, rel=0.03)
    assert run.summary.ttft_ms.mean == pytest.approx(100)
    assert run.summary.itl_ms.mean == pytest.approx(10) and run.summary.rhythm == pytest.approx(0, abs=1e-6)
    assert run.summary.elapsed_ms.largest == pytest.approx(1000 * REQUEST_S)


def test_rates_leave_out_the_tail_in_which_the_load_is_less():
    run = run_of(TimedDriver(), load=ClosedLoop(4), num_requests=6)
    last_end_s = max(record.ended_s for record in run.requests)
    assert last_end_s - run.window.begin_s == pytest.approx(2 * REQUEST_S)
    # When the first four had ended, two found nothing left to send: the other two ran on at half load.
    assert run.window.length_s == pytest.approx(REQUEST_S)
    assert run.summary.output_tokens_per_s == pytest.approx(40 / REQUEST_S)


def test_a_duration_ends_the_window_on_time_and_lets_requests_end():
    run = run_of(TimedDriver(), load=ClosedLoop(3), duration_s=10.0, num_warmup=3)
    assert run.window.length_s == pytest.approx(10.0)
    assert all(record.intended_s < run.window.end_s for record in run.requests)
    assert all(not record.error and record.num_tokens == 10 for record in run.requests)
    assert run.summary.output_tokens_per_s == pytest.approx(30 / REQUEST_S, rel=0.02)


def test_an_open_loop_sends_at_the_intended_times_whatever_the_server_does():
    load = OpenLoop(50.0, Arrivals.GAMMA, burstiness=0.5)
    run = run_of(TimedDriver(first_s=30.0), load=load, num_requests=200, seed=3)
    expected = list(itertools.islice(intended_times(load, 3), 200))
    intended = [record.intended_s - 1000.0 for record in run.requests]
    assert intended == pytest.approx(expected) and run.summary.peak_in_flight == 200
    assert run.summary.send_lag_ms.largest == pytest.approx(0, abs=1e-6)
    assert run.summary.ttft_ms.p50 == pytest.approx(30_000)


def test_a_stall_is_seen_by_every_request_that_was_due_in_it():
    """Coordinated omission: one stream that waits for its answer sends nothing in the stall, so that two
    seconds without service are one slow request among hundreds. By the intended times they are a tenth."""
    stall = {"stall_s": (5.0, 7.0)}
    closed = run_of(TimedDriver(**stall), load=ClosedLoop(1), num_requests=500)
    rate = OpenLoop(25.0, Arrivals.UNIFORM)
    opened = run_of(TimedDriver(**stall), load=rate, num_requests=500)
    assert closed.summary.ttft_ms.p95 == pytest.approx(100)
    assert opened.summary.ttft_ms.p95 > 900
    slow = [record for record in opened.requests if record.ttft_s > 0.11]
    assert len(slow) == pytest.approx(25 * 2, abs=3)
    assert max(record.ttft_s for record in slow) == pytest.approx(2.1, abs=0.05)
    assert opened.summary.worst_stall_ms == pytest.approx(2000, rel=0.02)


def test_a_request_that_a_busy_tool_sends_late_has_waited_since_it_was_due():
    """The event loop was held up: what was due then is sent later, and its latency says so."""
    driver = TimedDriver()
    plain_send = driver.send

    async def send(turn, arrivals):
        if len(driver.turns) == 3:
            asyncio.get_running_loop().now_s += 1.0  # a second in which the loop turns nothing
        await plain_send(turn, arrivals)

    driver.send = send
    run = run_of(driver, load=OpenLoop(10.0, Arrivals.UNIFORM), num_requests=20)
    assert run.summary.send_lag_ms.largest == pytest.approx(900, abs=1)
    assert max(record.ttft_s for record in run.requests) >= 1.0


def test_failures_are_counted_by_cause_and_kept_out_of_latencies():
    run = run_of(TimedDriver(fail_every=4), load=ClosedLoop(2), num_requests=40)
    assert run.summary.errors == {"told to fail": 10} and run.summary.num_failed == 10
    assert run.summary.ttft_ms.num_samples == 30 and run.summary.slo_share == pytest.approx(0.75)


def test_the_servers_count_is_checked_against_the_events():
    run = run_of(TimedDriver(tokens_per_event=2), num_requests=4)
    check = run.summary.token_check
    assert (check.num_reported, check.num_counted, check.num_different) == (40, 20, 4)
    # Throughput believes the server.
    assert run.summary.output_tokens_per_s == pytest.approx(10 / (0.1 + 4 * 0.01), rel=0.05)


def test_turns_of_a_conversation_follow_each_other_with_their_history():
    driver = TimedDriver()
    run = run_of(driver, load=ClosedLoop(2), num_requests=6, inputs=Inputs(num_turns=3))
    first, second, third = [turn for turn in driver.turns if turn.conversation == 0]
    assert second.history == (first.text, "so.") and third.history == (first.text, "so.", second.text, "so.")
    assert [turn.is_last for turn in (first, second, third)] == [False, False, True]
    assert run.summary.num_requests == 18 and [record.turn for record in run.requests].count(2) == 6


def test_a_replay_keeps_the_recorded_times(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [{"prompt": f"p{at_s}", "at_s": at_s, "max_tokens": 3} for at_s in (4.0, 0.5, 1.0)]
    file.write_text("\n".join(map(json.dumps, rows)))
    driver = TimedDriver()
    run = run_of(driver, load=Replay(), inputs=Inputs(file=file))
    assert [record.intended_s - 1000.0 for record in run.requests] == [0.5, 1.0, 4.0]
    assert [turn.text for turn in driver.turns] == ["p0.5", "p1.0", "p4.0"]
    assert run.summary.output_tokens.largest == 3 and run.window.length_s == pytest.approx(3.5)


def test_a_run_of_one_request_has_a_window():
    run = run_of(TimedDriver(), num_requests=1)
    assert run.summary.output_tokens_per_s == pytest.approx(10 / REQUEST_S)


def test_a_run_in_which_all_was_warm_up_says_so(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text('{"prompt": "a"}')
    with pytest.raises(EmptyRunError, match="1 requests were warm-up"):
        run_of(TimedDriver(), load=Replay(), inputs=Inputs(file=file), num_warmup=5)


def test_a_driver_whose_server_is_not_there_is_closed():
    driver = TimedDriver()

    async def open_half():
        driver.is_open = True
        raise RequestError("nobody")

    driver.open = open_half
    with pytest.raises(RequestError, match="nobody"):
        run_of(driver, num_requests=1)
    assert not driver.is_open


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "number of requests or a duration"),
        ({"load": Replay()}, "recorded file"),
        ({"load": OpenLoop(0.0), "num_requests": 1}, "rate"),
        ({"load": OpenLoop(1.0, Arrivals.GAMMA, 0.0), "num_requests": 1}, "burstiness"),
        ({"load": ClosedLoop(1), "num_processes": 2, "num_requests": 1}, "2 processes for 1 streams"),
        ({"num_requests": 1, "inputs": Inputs(num_turns=0)}, "at least 1"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_line(fields, message):
    with pytest.raises(SpecError, match=message):
        run_of(TimedDriver(), **fields)


@pytest.mark.parametrize(
    ("load", "variation"),
    [
        (OpenLoop(4.0), 1.0),
        (OpenLoop(4.0, Arrivals.GAMMA, burstiness=0.25), 2.0),
        (OpenLoop(4.0, Arrivals.GAMMA, burstiness=4.0), 0.5),
        (OpenLoop(4.0, Arrivals.UNIFORM), 0.0),
    ],
)
def test_gaps_have_the_rate_and_the_variation_asked_for(load, variation):
    times = list(itertools.islice(intended_times(load, 0), 40_000))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)
    assert list(itertools.islice(intended_times(load, 0), 100)) == times[:100]
