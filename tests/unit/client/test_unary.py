"""Everything but Generate, and sessions."""

import grpc
import pytest

from pagemesh import AsyncClient, Client, Complete, PagemeshError, RawText, RetryPolicy
from tests.support.fake_gateway import FAST, break_after, complete, error_info, play, started, token


def test_unary_calls_are_retried_while_the_gateway_is_away(gateway):
    gateway.unary_failures = 2
    with Client(gateway.address, retry_policy=FAST) as client:
        (model,) = client.list_models()
        assert (model.name, model.num_engines) == ("smollm2", 2)
        assert client.count_tokens(RawText("four")) == 4
        assert client.explain("hi").engine_id == "engine-1"


def test_unary_calls_end_at_their_limit(gateway):
    gateway.unary_failures = 100
    with Client(gateway.address, retry_policy=FAST) as client, pytest.raises(PagemeshError) as caught:
        client.list_models()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert gateway.unary_failures == 100 - FAST.max_attempts


def turn(version):
    return play(started(), token(1, 0, "yes"), complete(2, 1, session_version=version))


def test_each_turn_names_the_version_it_follows(gateway):
    gateway.scripts = [turn(1), turn(2)]
    with Client(gateway.address) as client, client.open_session("ada") as session:
        assert session.collect("one?").text == "yes"
        list(session.generate("two?", keep_output_tokens=1))
        assert session.version == 2
    first, second = (request.session for request in gateway.requests)
    assert (first.id, first.user_id, first.expect_version) == ("session of ada", "ada", 0)
    assert (second.expect_version, second.keep_output_tokens) == (1, 1)
    assert gateway.released == ["session of ada"]


def test_a_turn_that_was_not_saved_is_missed_at_the_next(gateway):
    gateway.scripts = [turn(None), turn(None)]
    with Client(gateway.address) as client:
        session = client.open_session("ada")
        session.collect("one?")
        session.collect("two?")
    assert [request.session.expect_version for request in gateway.requests] == [0, 1]


def test_after_a_turn_left_early_the_next_follows_whatever_is_there(gateway):
    gateway.scripts = [turn(1), turn(1)]
    with Client(gateway.address) as client:
        session = client.open_session("ada")
        stream = session.generate("one?")
        next(stream)
        stream.close()
        session.collect("two?")
    assert not gateway.requests[1].session.HasField("expect_version")


def test_a_failed_turn_leaves_the_version(gateway):
    gateway.scripts = [
        break_after(code=grpc.StatusCode.ABORTED, details=(error_info("TURN_RUNNING"),)),
        turn(1),
    ]
    with Client(gateway.address) as client:
        session = client.open_session("ada")
        with pytest.raises(PagemeshError):
            session.collect("one?")
        assert session.version == 0
        session.collect("one?")
    assert gateway.requests[1].session.expect_version == 0


def test_after_a_turn_whose_end_was_lost_the_next_follows_whatever_is_there(gateway):
    gateway.scripts = [break_after(started(resumable=False), token(1, 0, "yes")), turn(2)]
    with Client(gateway.address) as client:
        session = client.open_session("ada")
        with pytest.raises(PagemeshError):
            session.collect("one?")
        session.collect("two?")
        assert session.version == 2
    assert not gateway.requests[1].session.HasField("expect_version")


def refused_version():
    return break_after(code=grpc.StatusCode.FAILED_PRECONDITION, details=(error_info("SESSION_VERSION"),))


def test_a_session_that_stands_elsewhere_says_so_once_and_then_goes_on_from_there(gateway):
    gateway.scripts = [refused_version(), turn(5)]
    with Client(gateway.address) as client:
        session = client.open_session("ada")
        with pytest.raises(PagemeshError):
            session.collect("one?")
        session.collect("one?")
        assert session.version == 5
    assert not gateway.requests[1].session.HasField("expect_version")


def test_a_turn_that_was_never_saved_is_told_once_and_then_left_out(gateway):
    gateway.scripts = [turn(1), break_after(started(resumable=False)), refused_version(), turn(2)]
    with Client(gateway.address, retry_policy=RetryPolicy(max_attempts=1)) as client:
        session = client.open_session("ada")
        session.collect("one?")
        for _ in range(2):
            with pytest.raises(PagemeshError):
                session.collect("two?")
        session.collect("two?")
    expected = [request.session.HasField("expect_version") for request in gateway.requests]
    assert expected == [True, True, False, True]
    assert gateway.requests[3].session.expect_version == 1


async def test_the_asynchronous_client_has_the_same_calls(gateway):
    gateway.unary_failures = 1
    gateway.scripts = [turn(1)]
    async with AsyncClient(gateway.address, retry_policy=FAST) as client:
        assert (await client.list_models())[0].name == "smollm2"
        assert await client.count_tokens(RawText("four")) == 4
        assert (await client.explain("hi")).prompt_tokens == 7
        async with await client.open_session("ada") as session:
            events = [event async for event in session.generate("one?")]
            assert isinstance(events[-1], Complete) and session.version == 1
    assert gateway.released == ["session of ada"]
