"""A broken stream goes on elsewhere; the caller sees every event once."""

import itertools
import time
from contextlib import aclosing

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from pagemesh import (
    AsyncClient,
    Client,
    Complete,
    FinishReason,
    PagemeshError,
    Resumed,
    RetryPolicy,
    Started,
    TokenChunk,
)
from pagemesh.v1 import generation_pb2
from tests.support.fake_gateway import FAST, break_after, complete, error_info, play, started, token

WHOLE = (started(), token(1, 0, "Par"), token(2, 1, "is"), complete(3))


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TokenChunk))


def test_events_come_typed_and_in_order(gateway):
    gateway.scripts = [play(*WHOLE)]
    with Client(gateway.address) as client:
        events = list(client.generate("capital?", temperature=0, max_tokens=5))
    assert [type(event) for event in events] == [Started, TokenChunk, TokenChunk, Complete]
    assert [event.seq_id for event in events] == [0, 1, 2, 3]
    assert events[0].prompt_ids == (5, 6, 7)
    assert events[3].choices[0].finish_reason is FinishReason.STOP
    assert events[3].choices[0].stop_reason == 2
    request = gateway.requests[0]
    assert request.conversation.segments[0].content == "capital?"
    assert request.sampling.temperature == 0 and request.sampling.HasField("temperature")
    assert request.request_id and request.client_attempt == 0


def test_a_finish_that_this_client_does_not_know_is_no_reason_to_lose_the_answer(gateway):
    end = complete(3)
    end.complete.choices[0].finish_reason = 77
    gateway.scripts = [play(started(), token(1, 0, "Par"), token(2, 1, "is"), end)]
    with Client(gateway.address) as client:
        answer = client.collect("capital?")
    assert answer.text == "Paris" and answer.choices[0].finish_reason is FinishReason.UNKNOWN


def test_collect_adds_the_stream_up(gateway):
    gateway.scripts = [play(*WHOLE), play(*WHOLE)]
    with Client(gateway.address) as client:
        answer = client.collect("capital?")
        assert client.generate_text("capital?") == answer.text == "Paris"
    assert answer.choices[0].ids == (100, 101)
    assert answer.receipt.engine_id == "engine-1"


def test_a_failure_before_the_first_event_is_the_same_request_again(gateways):
    first, second = gateways
    first.scripts = [break_after()]
    second.scripts = [play(*WHOLE)]
    with Client([first.address, second.address], retry_policy=FAST) as client:
        assert text_of(client.generate("hi")) == "Paris"
    assert first.requests[0].request_id == second.requests[0].request_id
    assert second.requests[0].client_attempt == 1
    assert not second.requests[0].HasField("resume")


@pytest.mark.parametrize("num_seen", [1, 2, 3])
def test_a_broken_stream_goes_on_at_the_next_gateway(gateways, num_seen):
    first, second = gateways
    rest = [token(seq_id + 1, index, text) for seq_id, index, text in ((1, 0, "Par"), (2, 1, "is"))]
    first.scripts = [break_after(*WHOLE[:num_seen])]
    second.scripts = [play(started(num_seen), *rest[num_seen - 1 :], complete(4))]
    with Client([first.address, second.address], retry_policy=FAST) as client:
        events = list(client.generate("hi", n=1))
    assert [event.seq_id for event in events] == list(range(5))
    assert text_of(events) == "Paris"
    resumed = next(event for event in events if isinstance(event, Resumed))
    assert (resumed.address, resumed.client_attempt) == (second.address, 1)
    request = second.requests[0]
    assert request.resume.next_seq_id == num_seen
    assert list(request.resume.prompt_ids) == [5, 6, 7]
    assert list(request.resume.choices[0].output_ids) == [100, 101][: num_seen - 1]
    assert request.resume.resume_token == b"sealed"
    assert request.seed == 11
    assert request.conversation == first.requests[0].conversation


def test_every_choice_resumes_with_its_own_ids(gateways):
    first, second = gateways
    first.scripts = [
        break_after(started(), token(1, 0, "a", choice=2), token(2, 0, "b", choice=0, num_ids=3))
    ]
    second.scripts = [play(started(3), complete(4))]
    with Client([first.address, second.address], retry_policy=FAST) as client:
        list(client.generate("hi", n=3))
    choices = [list(choice.output_ids) for choice in second.requests[0].resume.choices]
    assert choices == [[100, 101, 102], [], [100]]


def test_a_stream_breaks_again_and_again(gateways):
    first, second = gateways
    first.scripts = [
        break_after(started(0)),
        break_after(),
        play(started(4), token(5, 1, "is"), complete(6)),
    ]
    second.scripts = [break_after(started(1)), break_after(started(2), token(3, 0, "Par"))]
    with Client([first.address, second.address], retry_policy=FAST) as client:
        events = list(client.generate("hi"))
    assert [event.seq_id for event in events] == list(range(7))
    assert text_of(events) == "Paris"
    assert [request.client_attempt for request in first.requests] == [0, 2, 4]


def test_a_repeated_event_is_dropped_and_a_gap_breaks_the_stream(gateway):
    gateway.scripts = [
        play(started(), token(1, 0, "Par"), token(1, 0, "Par"), token(3, 2, "!")),
        play(started(2), token(3, 1, "is"), complete(4)),
    ]
    with Client(gateway.address, retry_policy=FAST) as client:
        events = list(client.generate("hi"))
    assert [event.seq_id for event in events] == list(range(5))
    assert text_of(events) == "Paris"


def test_ids_out_of_place_never_reach_the_caller(gateway):
    gateway.scripts = [
        play(started(), token(1, 0, "Par"), token(2, 0, "Par")),
        play(started(2), token(3, 1, "is"), complete(4)),
    ]
    with Client(gateway.address, retry_policy=FAST) as client:
        assert text_of(client.generate("hi")) == "Paris"


def test_a_stream_without_its_last_event_is_broken(gateway):
    gateway.scripts = [play(*WHOLE[:3]), play(started(3), complete(4))]
    with Client(gateway.address, retry_policy=FAST) as client:
        events = list(client.generate("hi"))
    assert isinstance(events[-1], Complete) and text_of(events) == "Paris"


def test_what_breaks_after_complete_takes_nothing_away(gateway):
    gateway.scripts = [break_after(*WHOLE)]
    with Client(gateway.address, retry_policy=FAST) as client:
        assert text_of(client.generate("hi")) == "Paris"
    assert len(gateway.requests) == 1


def test_a_stream_that_is_not_resumable_ends_with_its_gateway(gateways):
    first, second = gateways
    first.scripts = [break_after(started(resumable=False), token(1, 0, "Par"))]
    with (
        Client([first.address, second.address], retry_policy=FAST) as client,
        pytest.raises(PagemeshError) as caught,
    ):
        list(client.generate("hi"))
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert second.requests == []


def test_without_tokens_even_that_one_starts_anew_with_its_seed(gateways):
    first, second = gateways
    first.scripts = [break_after(started(resumable=False))]
    second.scripts = [play(*WHOLE)]
    with Client([first.address, second.address], retry_policy=FAST) as client:
        events = list(client.generate("hi"))
    assert [event.seq_id for event in events] == [0, 1, 2, 3]
    assert second.requests[0].seed == 11 and not second.requests[0].HasField("resume")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
        (grpc.StatusCode.ABORTED, "SUPERSEDED"),
        (grpc.StatusCode.UNAVAILABLE, "CRASH_LIMIT"),
        (grpc.StatusCode.INTERNAL, "BAD_LOGITS"),
    ],
)
def test_a_verdict_is_not_retried(gateway, code, reason):
    receipt = generation_pb2.Receipt(elapsed_ms=12.5, moves=2)
    gateway.scripts = [break_after(started(), code=code, details=(error_info(reason), receipt))]
    with Client(gateway.address, retry_policy=FAST) as client, pytest.raises(PagemeshError) as caught:
        list(client.generate("hi"))
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert caught.value.receipt.moves == 2
    assert len(gateway.requests) == 1


def test_an_error_tells_field_and_delay(gateway):
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="too big")
    details = (
        error_info("INVALID_FIELD"),
        error_details_pb2.BadRequest(field_violations=[violation]),
        error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)),
    )
    gateway.scripts = [break_after(code=grpc.StatusCode.INVALID_ARGUMENT, details=details)]
    with Client(gateway.address) as client, pytest.raises(PagemeshError) as caught:
        list(client.generate("hi", top_p=3))
    assert (caught.value.field, caught.value.retry_delay_s) == ("sampling.top_p", 1.5)
    assert str(caught.value) == "INVALID_ARGUMENT/INVALID_FIELD: it broke (field sampling.top_p)"


def test_retries_are_bounded(gateway):
    gateway.scripts = [break_after() for _ in range(20)]
    policy = RetryPolicy(max_attempts=3, first_delay_s=0.001)
    with Client(gateway.address, retry_policy=policy) as client, pytest.raises(PagemeshError):
        list(client.generate("hi"))
    assert len(gateway.requests) == 3


def test_a_deadline_holds_over_all_attempts(gateway):
    gateway.scripts = [break_after() for _ in range(1000)]
    policy = RetryPolicy(max_attempts=1000, first_delay_s=0.05, budget=1000)
    begin_s = time.monotonic()
    with Client(gateway.address, retry_policy=policy) as client, pytest.raises(PagemeshError):
        list(client.generate("hi", timeout_s=0.4))
    assert time.monotonic() - begin_s < 1.0


def test_no_time_is_not_all_the_time(gateway):
    with Client(gateway.address, retry_policy=FAST) as client, pytest.raises(PagemeshError) as caught:
        list(client.generate("hi", timeout_s=0))
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_gateway_that_nobody_runs_is_passed_over(gateways):
    _, second = gateways
    second.scripts = [play(*WHOLE)]
    with Client(["127.0.0.1:1", second.address], retry_policy=FAST) as client:
        assert text_of(client.generate("hi")) == "Paris"


def test_leaving_the_stream_cancels_the_request(gateway):
    ended = []

    def endless(request, context):
        context.add_callback(lambda: ended.append(True))
        yield started()
        for index in itertools.count():
            if not context.is_active():
                return
            yield token(index + 1, index, "x")

    gateway.scripts = [endless]
    with Client(gateway.address) as client:
        stream = client.generate("hi")
        next(stream), next(stream)
        stream.close()
        deadline_s = time.monotonic() + 5
        while not ended and time.monotonic() < deadline_s:
            time.sleep(0.005)
    assert ended


def test_the_api_key_travels_as_a_bearer_token(gateway):
    gateway.scripts = [play(*WHOLE)]
    with Client(gateway.address, api_key="k1") as client:
        list(client.generate("hi"))
    assert gateway.metadata[0]["authorization"] == "Bearer k1"


async def test_the_asynchronous_client_resumes_as_well(gateways):
    first, second = gateways
    first.scripts = [break_after(*WHOLE[:2])]
    second.scripts = [play(started(2), token(3, 1, "is"), complete(4)), play(*WHOLE), play(*WHOLE)]
    async with AsyncClient([first.address, second.address], retry_policy=FAST) as client:
        events = [event async for event in client.generate("hi")]
        assert [event.seq_id for event in events] == list(range(5))
        assert text_of(events) == "Paris"
        assert (await client.collect("hi")).text == "Paris"
        async with aclosing(client.generate("hi")) as stream:
            assert isinstance(await anext(stream), Started)


async def test_the_asynchronous_client_reports_verdicts(gateway):
    details = (error_info("UNKNOWN_MODEL"),)
    gateway.scripts = [break_after(code=grpc.StatusCode.NOT_FOUND, details=details)]
    async with AsyncClient(gateway.address) as client:
        with pytest.raises(PagemeshError) as caught:
            await client.generate_text("hi", model="nope")
    assert caught.value.reason == "UNKNOWN_MODEL"
