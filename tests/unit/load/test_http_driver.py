"""OpenAI-style servers as they are: chunks split anywhere, several tokens in one, an end without a mark."""

import pytest

from bench.load.drivers.driver import RequestError, Turn
from bench.load.drivers.http_driver import HttpDriver
from bench.load.run import measure
from bench.load.spec import Arrivals, ClosedLoop, Inputs, LoadSpec, OpenLoop
from tests.support.sse_server import SseServer, sse, well_formed


def read(*chunks):
    return HttpDriver(LoadSpec("http://nowhere")).read([(float(i), chunk) for i, chunk in enumerate(chunks)])


def spec_of(server, **fields):
    return LoadSpec(server.address, **{"num_requests": 6, "num_warmup": 0, "max_tokens": 5, **fields})


def test_a_server_is_driven_and_its_counts_agree():
    with SseServer() as server:
        run = measure(spec_of(server, load=ClosedLoop(3), num_warmup=2, extra={"cache_prompt": False}))
    check = run.summary.token_check
    assert (check.num_reported, check.num_counted, check.num_different) == (30, 30, 0)
    assert run.summary.num_failed == 0 and run.summary.prompt_tokens.mean == 7
    assert server.paths == ["/v1/completions"] * 8
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("served", 5, True)
    assert (body["temperature"], body["stream"], body["cache_prompt"]) == (0.0, True, False)


def test_a_conversation_sends_its_history_as_messages():
    with SseServer() as server:
        run = measure(spec_of(server, num_requests=1, inputs=Inputs(num_turns=2), api_key="k", model="m"))
    assert server.paths == ["/v1/chat/completions"] * 2 and run.summary.num_requests == 2
    first, second = (body["messages"] for body in server.bodies)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0] and second[1]["content"] == " so" * 5
    assert server.headers[0]["Authorization"] == "Bearer k" and server.bodies[0]["model"] == "m"


def test_an_open_loop_goes_on_while_the_server_holds_its_answers():
    """All but two requests are held until the last one has arrived: a closed loop would never end."""
    with SseServer(hold_from=2) as server:

        def release_when_all_are_sent(num_begun, num_measured):
            if num_begun == 12:
                server.release()

        load = OpenLoop(200.0, Arrivals.UNIFORM)
        run = measure(spec_of(server, load=load, num_requests=12), on_progress=release_when_all_are_sent)
    assert run.summary.num_failed == 0 and run.summary.peak_in_flight >= 10
    intended = [record.intended_s for record in run.requests]
    assert intended[-1] - intended[0] == pytest.approx(11 / 200)
    released_s = min(record.token_times_s[0] for record in run.requests[2:])
    for record in run.requests[2:]:
        assert record.ttft_s >= released_s - record.intended_s


@pytest.mark.parametrize("size", [1, 7, 50])
def test_chunks_may_be_split_anywhere_and_an_event_has_the_time_of_its_last_byte(size):
    stream = b"".join(well_formed(4))
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    answer = read(*pieces)
    assert answer.text == " so" * 4 and answer.num_output_tokens == 4 and answer.num_prompt_tokens == 7
    ends = [stream.index(b"\n", stream.index(b'" so"', at)) // size for at in _starts(stream, b'" so"')]
    assert list(answer.token_times_s) == ends


def _starts(stream, mark):
    at = -1
    while (at := stream.find(mark, at + 1)) >= 0:
        yield at


def test_a_chats_opening_role_is_no_token_but_an_unfinished_character_is():
    assert read(*well_formed(3, is_chat=True)).token_counts == [1, 1, 1]
    unfinished = sse({"choices": [{"text": "", "finish_reason": None}]})
    assert len(read(unfinished, *well_formed(1)).token_times_s) == 2


def test_an_empty_last_event_is_no_token():
    """llama.cpp's server sends the reason in an event of its own, and counts in it."""
    token = sse({"choices": [{"text": "so", "finish_reason": None}]})
    last = sse({"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 1}})
    answer = read(token, last)
    assert len(answer.token_times_s) == 1 and answer.num_output_tokens == 1


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([sse({"choices": [{"text": "so", "finish_reason": None}]})], "the stream was cut"),
        ([sse({"error": {"message": "overloaded"}})], "an error inside the stream"),
        ([b"data: {oops\n\n"], "an event is not JSON"),
    ],
)
def test_a_broken_stream_is_a_failed_request(chunks, message):
    with pytest.raises(RequestError, match=message):
        read(*chunks)
    with SseServer(chunks=chunks) as server:
        summary = measure(spec_of(server, num_requests=2)).summary
    assert summary.errors == {message: 2} and summary.output_tokens_per_s == 0


def test_a_refusal_is_counted_by_its_status():
    with SseServer(status=503) as server:
        assert measure(spec_of(server, num_requests=2)).summary.errors == {"HTTP 503": 2}


def test_nobody_there_is_said_at_once():
    with SseServer() as server:
        address = server.address
    with pytest.raises(RequestError, match="lists no model"):
        measure(LoadSpec(address, num_requests=1))
    with pytest.raises(RequestError, match="lists no model"):
        measure(LoadSpec(address, load=ClosedLoop(2), num_requests=2, num_processes=2))


def test_a_turn_without_history_is_whole():
    assert Turn(0, "a", 1).is_whole and not Turn(0, "a", 1, is_last=False).is_whole
