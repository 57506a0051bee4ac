"""Python arguments become the wire's fields; what no field can hold is refused by name."""

import json

import pytest

from pagemesh import (
    CachePolicy,
    CacheScope,
    Options,
    Priority,
    RawText,
    Role,
    Segment,
    TokenIds,
    TruncationSide,
    generate_request,
)
from pagemesh.v1 import gateway_pb2, generation_pb2


def test_every_option_has_its_place():
    request = generate_request(
        "hi",
        model="m",
        request_id="r",
        n=2,
        max_tokens=3,
        min_tokens=1,
        temperature=0.5,
        top_k=-1,
        top_p=0.75,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=2,
        ignore_eos=True,
        logit_bias={7: -2.0},
        logprobs=0,
        seed=2**64 - 1,
        stop="END",
        stop_ids=[9],
        include_stop=True,
        skip_special_tokens=False,
        truncation_side=TruncationSide.LEFT,
        max_prompt_tokens=10,
        cache_policy=CachePolicy.BYPASS,
        cache_scope=CacheScope.USER,
        priority=Priority.BATCH,
        max_queue_wait_ms=5,
        max_run_time_ms=6,
    )
    expected = gateway_pb2.GenerateRequest(
        model="m",
        request_id="r",
        conversation=gateway_pb2.Conversation(
            segments=[gateway_pb2.Segment(role=gateway_pb2.ROLE_USER, content="hi")]
        ),
        n=2,
        max_tokens=3,
        sampling=generation_pb2.SamplingParams(
            temperature=0.5,
            top_k=-1,
            top_p=0.75,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=-1,
            frequency_penalty=2,
            min_tokens=1,
            ignore_eos=True,
            logit_bias=[generation_pb2.TokenBias(token_id=7, bias=-2.0)],
            logprobs=0,
        ),
        stop=gateway_pb2.StopConditions(texts=["END"], ids=[9], include_stop=True),
        skip_special_tokens=False,
        truncation=gateway_pb2.Truncation(side=gateway_pb2.TRUNCATION_SIDE_LEFT, max_prompt_tokens=10),
        cache=gateway_pb2.CacheOptions(
            policy=generation_pb2.CACHE_POLICY_BYPASS, scope=gateway_pb2.CACHE_SCOPE_USER
        ),
        priority=generation_pb2.PRIORITY_BATCH,
        max_queue_wait_ms=5,
        max_run_time_ms=6,
        seed=2**64 - 1,
    )
    assert request == expected


def test_the_test_above_knows_every_option():
    known = set(Options.__annotations__)
    assert known == {
        *("model", "request_id", "n", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos", "logit_bias"),
        *("logprobs", "seed", "stop", "stop_ids", "include_stop", "skip_special_tokens", "truncation_side"),
        *("max_prompt_tokens", "cache_policy", "cache_scope", "priority", "max_queue_wait_ms"),
        "max_run_time_ms",
    }


def test_prompts_of_each_kind():
    assert generate_request(RawText("as it is")).text == "as it is"
    assert list(generate_request(TokenIds((1, 2))).ids.ids) == [1, 2]
    turns = [Segment(Role.SYSTEM, "be brief"), Segment(Role.USER, "hi", weight=2.0)]
    segments = generate_request(turns).conversation.segments
    assert [segment.role for segment in segments] == [gateway_pb2.ROLE_SYSTEM, gateway_pb2.ROLE_USER]
    assert not segments[0].HasField("weight") and segments[1].weight == 2.0
    messages = [{"role": "user", "content": "ahoj světe"}]
    assert json.loads(generate_request(messages).messages_json) == messages


def test_empty_prompts_travel_so_that_the_gateway_can_refuse_them():
    assert generate_request("").WhichOneof("prompt") == "conversation"
    assert generate_request(TokenIds(())).WhichOneof("prompt") == "ids"
    assert generate_request([]).WhichOneof("prompt") == "conversation"
    assert generate_request(RawText("")).WhichOneof("prompt") == "text"


@pytest.mark.parametrize(
    ("options", "word"),
    [({"max_tokens": -1}, "max_tokens"), ({"seed": 2**64}, "seed"), ({"temperature": "hot"}, "temperature")],
)
def test_what_no_field_can_hold_is_refused_by_name(options, word):
    with pytest.raises((TypeError, ValueError), match=word):
        generate_request("hi", **options)


def test_unknown_options_and_prompts_are_refused():
    with pytest.raises(TypeError, match="temprature"):
        generate_request("hi", temprature=1)
    with pytest.raises(TypeError, match="prompt"):
        generate_request(7)
