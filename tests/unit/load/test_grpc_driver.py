"""A gateway as the load tool drives it, played by scripts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bench.load.drivers.driver import RequestError
from bench.load.run import measure
from bench.load.spec import Cache, ClosedLoop, Inputs, LoadSpec
from pagemesh.v1 import gateway_pb2_grpc, generation_pb2
from tests.support.fake_gateway import FakeGateway, break_after, complete, error_info, play, started, token


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()
    server = grpc.server(ThreadPoolExecutor(4))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    fake.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield fake
    server.stop(None).wait()


def run_of(gateway, **fields):
    defaults = {"num_requests": 1, "num_warmup": 0, "max_tokens": 2}
    return measure(LoadSpec(f"grpc://{gateway.address}", **{**defaults, **fields}))


def test_ids_are_counted_not_events_and_checked_against_usage(gateway):
    gateway.scripts = [
        play(started(), token(1, 0, "a", num_ids=2), token(2, 2, "b"), complete(3, num_tokens=3)),
        play(started(), token(1, 0, "a", num_ids=2), complete(2, num_tokens=3)),
    ]
    run = run_of(gateway, num_requests=2)
    check = run.summary.token_check
    assert (check.num_reported, check.num_counted, check.num_different) == (6, 5, 1)
    assert [list(record.token_counts) for record in run.requests] == [[2, 1], [2]]


def test_a_completion_is_raw_text_greedy_and_goes_on_after_the_end(gateway):
    gateway.scripts = [play(started(), token(1, 0, "a"), complete(2, 1))]
    run_of(gateway, api_key="key", cache=Cache.BYPASS, model="smollm2")
    (request,) = gateway.requests
    assert request.WhichOneof("prompt") == "text" and request.max_tokens == 2 and request.model == "smollm2"
    assert request.sampling.temperature == 0 and request.sampling.ignore_eos
    assert request.cache.policy == generation_pb2.CACHE_POLICY_BYPASS
    assert gateway.metadata[0]["authorization"] == "Bearer key"


def test_a_conversation_is_a_session_that_is_released(gateway):
    answer = play(started(), token(1, 0, "a"), complete(2, 1))
    gateway.scripts = [answer] * 4
    run_of(gateway, load=ClosedLoop(1), num_requests=2, inputs=Inputs(num_turns=2))
    assert [request.WhichOneof("prompt") for request in gateway.requests] == ["conversation"] * 4
    assert len({request.session.id for request in gateway.requests}) == 1
    assert all(len(request.conversation.segments) == 1 for request in gateway.requests)
    assert len(gateway.released) == 2


def test_a_conversation_that_fails_is_released_too(gateway):
    gateway.scripts = [break_after(started())]
    run = run_of(gateway, inputs=Inputs(num_turns=3))
    assert run.summary.errors == {"UNAVAILABLE": 1} and len(gateway.released) == 1


def test_a_failure_is_named_by_its_reason(gateway):
    full = error_info("QUEUE_FULL")
    gateway.scripts = [
        break_after(started(), code=grpc.StatusCode.RESOURCE_EXHAUSTED, details=(full,)),
        play(started(), token(1, 0, "a")),
    ]
    summary = run_of(gateway, num_requests=2).summary
    assert summary.errors == {
        "RESOURCE_EXHAUSTED QUEUE_FULL": 1,
        "the stream ended without complete": 1,
    }


def test_nobody_there_is_said_at_once():
    with pytest.raises(RequestError, match="UNAVAILABLE"):
        measure(LoadSpec("grpc://127.0.0.1:9", num_requests=1))
