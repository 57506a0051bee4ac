"""Every bad field is refused by name; every good one arrives, its default resolved."""

from dataclasses import dataclass

import pytest
from google.protobuf import text_format

from pagemesh.v1 import gateway_pb2
from services.contract.errors import MeshError, Reason
from services.contract.priority import Priority
from services.gateway.spec.generation_spec import (
    CachePolicy,
    CacheScope,
    ConversationPrompt,
    GenerationSpec,
    IdsPrompt,
    MessagesPrompt,
    Resume,
    Role,
    Sampling,
    Segment,
    SessionTurn,
    Stop,
    TextPrompt,
    Truncation,
    TruncationSide,
)
from services.gateway.spec.validation import (
    check_limits,
    validate_count_tokens,
    validate_generate,
    validate_open_session,
    validate_release_session,
)

VOCAB = 100
TALK = 'conversation { segments { role: ROLE_USER content: "hi" } }'
RESUME = (
    'text: "x" request_id: "r" client_attempt: 1 seed: 5 '
    'resume { next_seq_id: 3 prompt_ids: 1 choices { output_ids: [2, 3] } resume_token: "t" }'
)
INF, NAN = "inf", "nan"
BAD_IDS = (-1, VOCAB, 2**31 - 1, 2**63 - 1)


def request_of(text):
    return text_format.Parse(text, gateway_pb2.GenerateRequest())


def spec_of(text):
    return validate_generate(request_of(text), VOCAB)


REFUSED = [
    ("", "prompt"),
    ('text: ""', "text"),
    ("ids {}", "ids.ids"),
    *((f"ids {{ ids: [1, {bad}] }}", "ids.ids[1]") for bad in BAD_IDS),
    ("conversation {}", "conversation.segments"),
    ('conversation { segments { role: ROLE_USER content: "" } }', "conversation.segments[0].content"),
    (
        'conversation { segments { role: ROLE_SYSTEM } segments { role: ROLE_USER content: "" } }',
        "conversation.segments[0].content",
    ),
    ('conversation { segments { content: "x" } }', "conversation.segments[0].role"),
    ('conversation { segments { role: 9 content: "x" } }', "conversation.segments[0].role"),
    (
        'conversation { segments { role: ROLE_USER content: "x" } segments { role: ROLE_SYSTEM } }',
        "conversation.segments[1].role",
    ),
    *(
        (
            f'conversation {{ segments {{ role: ROLE_USER content: "x" weight: {weight} }} }}',
            "conversation.segments[0].weight",
        )
        for weight in ("0", "-1", INF, NAN)
    ),
    ('messages_json: ""', "messages_json"),
    ('messages_json: " [ ]\\n"', "messages_json"),
    ('text: "x" request_id: "a\\0b"', "request_id"),
    (f'text: "x" request_id: "{"é" * 65}"', "request_id"),
    ('text: "x" model: "\\0"', "model"),
    ('text: "x" max_tokens: 0', "max_tokens"),
    ('text: "x" max_tokens: 4 sampling { min_tokens: 5 }', "sampling.min_tokens"),
    ('text: "x" truncation { side: 9 }', "truncation.side"),
    ('text: "x" priority: 9', "priority"),
    ('text: "x" cache { policy: 9 }', "cache.policy"),
    ('text: "x" cache { scope: 9 }', "cache.scope"),
    ('text: "x" cache { scope: CACHE_SCOPE_SESSION }', "cache.scope"),
    ('text: "x" cache { scope: CACHE_SCOPE_USER }', "cache.scope"),
    (f'{TALK} cache {{ scope: CACHE_SCOPE_USER }} session {{ id: "s" }}', "cache.scope"),
    *(
        (f'text: "x" sampling {{ temperature: {t} }}', "sampling.temperature")
        for t in ("-0.1", "101", INF, NAN)
    ),
    *((f'text: "x" sampling {{ top_k: {k} }}', "sampling.top_k") for k in (-2, -(2**63))),
    *((f'text: "x" sampling {{ top_p: {p} }}', "sampling.top_p") for p in ("0", "1.1", "-1", NAN)),
    *((f'text: "x" sampling {{ min_p: {p} }}', "sampling.min_p") for p in ("-0.1", "1.1", NAN)),
    *(
        (f'text: "x" sampling {{ repetition_penalty: {p} }}', "sampling.repetition_penalty")
        for p in ("0", "-1", "101", INF, NAN)
    ),
    *(
        (f'text: "x" sampling {{ {name}: {p} }}', f"sampling.{name}")
        for name in ("presence_penalty", "frequency_penalty")
        for p in ("-2.1", "2.1", INF, NAN)
    ),
    ('text: "x" sampling { logprobs: 21 }', "sampling.logprobs"),
    *(
        (
            f'text: "x" sampling {{ logit_bias {{ token_id: 3 }} logit_bias {{ token_id: {bad} }} }}',
            "sampling.logit_bias[1].token_id",
        )
        for bad in (*BAD_IDS, 3)
    ),
    *(
        (f'text: "x" sampling {{ logit_bias {{ token_id: 3 bias: {b} }} }}', "sampling.logit_bias[0].bias")
        for b in (INF, "-inf", "1e38", "100.5", NAN)
    ),
    ('text: "x" sampling {' + "logit_bias { token_id: 1 }" * 1025 + "}", "sampling.logit_bias"),
    *((f'text: "x" stop {{ ids: [0, 99, {bad}] }}', "stop.ids[2]") for bad in BAD_IDS),
    (f'text: "x" stop {{ ids: {[1] * 65} }}', "stop.ids"),
    ('text: "x" stop { texts: ["a", ""] }', "stop.texts[1]"),
    (f'text: "x" stop {{ texts: "{"é" * 129}" }}', "stop.texts[0]"),
    ('text: "x" stop { texts: "a\\0" }', "stop.texts[0]"),
    ('text: "x" stop {' + 'texts: "a"' * 17 + "}", "stop.texts"),
    (f'{TALK} session {{ user_id: "u" }}', "session.id"),
    (f'{TALK} session {{ id: "a\\0" }}', "session.id"),
    (f'{TALK} session {{ id: "s" user_id: "\\0" }}', "session.user_id"),
    (f'{TALK} n: 2 session {{ id: "s" }}', "n"),
    ('text: "x" session { id: "s" }', "text"),
    ('ids { ids: 1 } session { id: "s" }', "ids"),
    (RESUME.replace('request_id: "r"', ""), "request_id"),
    (RESUME.replace("client_attempt: 1", ""), "client_attempt"),
    (RESUME.replace("seed: 5", ""), "seed"),
    (RESUME.replace("prompt_ids: 1", ""), "resume.prompt_ids"),
    (RESUME.replace("next_seq_id: 3", f"next_seq_id: {2**64 - 1}"), "resume.next_seq_id"),
    (RESUME.replace("prompt_ids: 1", "prompt_ids: [1, 100]"), "resume.prompt_ids[1]"),
    (RESUME.replace('resume_token: "t"', ""), "resume.resume_token"),
    (RESUME.replace("[2, 3]", "[2, -3]"), "resume.choices[0].output_ids[1]"),
    (RESUME + "n: 2", "resume.choices"),
    (RESUME + "max_tokens: 1", "resume.choices[0].output_ids"),
]


@pytest.mark.parametrize(
    ("text", "field"), REFUSED, ids=[f"{field}-{i}" for i, (_, field) in enumerate(REFUSED)]
)
def test_a_bad_field_is_refused_by_name(text, field):
    with pytest.raises(MeshError) as refusal:
        spec_of(text)
    assert (refusal.value.reason, refusal.value.field) == (Reason.INVALID_FIELD, field)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('text: "x" constraint { regex: "a" }', "constraint"),
        ('text: "x" constraint {}', "constraint"),
        ('text: "x" stream { sentence_pause_ms: 10 }', "stream.sentence_pause_ms"),
        ('text: "x" truncation { side: TRUNCATION_SIDE_KEEP_IMPORTANT }', "truncation.side"),
    ],
)
def test_a_later_feature_is_not_supported_yet(text, field):
    with pytest.raises(MeshError) as refusal:
        spec_of(text)
    assert (refusal.value.reason, refusal.value.field) == (Reason.NOT_SUPPORTED, field)


def test_defaults_are_resolved():
    assert spec_of('text: "x"') == GenerationSpec(prompt=TextPrompt("x"))


def test_everything_that_is_asked_for_arrives():
    spec = spec_of(
        """
        request_id: "r" client_attempt: 2 model: "m" n: 1 max_tokens: 9 skip_special_tokens: false seed: 0
        conversation { segments { role: ROLE_SYSTEM content: "s" weight: 2 } segments { role: ROLE_TOOL } }
        truncation { side: TRUNCATION_SIDE_LEFT max_prompt_tokens: 5 }
        sampling { temperature: 0 top_k: 5 top_p: 0.5 min_p: 0.25 repetition_penalty: 1.5 presence_penalty: -2
                   frequency_penalty: 2 min_tokens: 9 ignore_eos: true logprobs: 0
                   logit_bias { token_id: 99 bias: -100 } }
        stop { texts: "a" ids: 99 include_stop: true }
        cache { policy: CACHE_POLICY_BYPASS scope: CACHE_SCOPE_SESSION }
        session { id: "s" user_id: "u" expect_version: 0 keep_output_tokens: 0 }
        priority: PRIORITY_BATCH max_queue_wait_ms: 1500 max_run_time_ms: 250
        """
    )
    assert spec == GenerationSpec(
        prompt=ConversationPrompt((Segment(Role.SYSTEM, "s", 2.0), Segment(Role.TOOL, ""))),
        request_id="r",
        client_attempt=2,
        model="m",
        truncation=Truncation(TruncationSide.LEFT, 5),
        max_tokens=9,
        sampling=Sampling(0.0, 5, 0.5, 0.25, 1.5, -2.0, 2.0, 9, True, ((99, -100.0),), 0),
        stop=Stop(("a",), (99,), True),
        skip_special_tokens=False,
        cache_policy=CachePolicy.BYPASS,
        cache_scope=CacheScope.SESSION,
        session=SessionTurn("s", "u", 0, 0),
        priority=Priority.BATCH,
        max_queue_wait_s=1.5,
        max_run_time_s=0.25,
        seed=0,
    )


@pytest.mark.parametrize("top_k", [-1, 0, VOCAB, VOCAB + 1, 9999999, 2**63 - 1])
def test_a_top_k_that_keeps_everything_is_off(top_k):
    assert spec_of(f'text: "x" sampling {{ top_k: {top_k} }}').sampling.top_k == 0


def test_a_top_k_within_the_vocabulary_stays():
    assert [spec_of(f'text: "x" sampling {{ top_k: {k} }}').sampling.top_k for k in (1, 99)] == [1, 99]


def test_prompts_that_are_good():
    assert spec_of('text: " "').prompt == TextPrompt(" ")
    assert spec_of('text: "a\\0b"').prompt == TextPrompt("a\0b")
    assert spec_of("ids { ids: [0, 99] }").prompt == IdsPrompt((0, 99))
    assert spec_of("messages_json: '[{}]'").prompt == MessagesPrompt("[{}]")
    assert spec_of('conversation { segments { role: ROLE_USER content: " " } }').prompt == ConversationPrompt(
        (Segment(Role.USER, " "),)
    )


def test_a_resume_arrives():
    assert spec_of(RESUME).resume == Resume(3, (1,), ((2, 3),), b"t")


def test_no_message_repeats_what_was_given_as_text():
    secret = "hunter2"
    for text in (
        f'text: "{secret}" stop {{ texts: "{secret}\\0" }}',
        f'text: "{secret}" request_id: "{secret}\\0"',
        f'{TALK} session {{ id: "{secret}\\0" }}',
    ):
        with pytest.raises(MeshError) as refusal:
            spec_of(text)
        assert secret not in str(refusal.value)


def test_the_smaller_calls():
    assert validate_count_tokens(gateway_pb2.CountTokensRequest(text="x")) == ("", TextPrompt("x"))
    assert validate_open_session(gateway_pb2.OpenSessionRequest(user_id="u", model="m")) == ("u", "m")
    assert validate_release_session(gateway_pb2.ReleaseSessionRequest(session_id="s")) == ("s", "")
    for bad, validate, field in (
        (gateway_pb2.CountTokensRequest(), validate_count_tokens, "prompt"),
        (gateway_pb2.OpenSessionRequest(user_id="\0"), validate_open_session, "user_id"),
        (gateway_pb2.ReleaseSessionRequest(), validate_release_session, "session_id"),
    ):
        with pytest.raises(MeshError) as refusal:
            validate(bad)
        assert refusal.value.field == field


@dataclass(frozen=True)
class Fleet:
    max_model_len: int = 8192
    max_pool_tokens: int = 20000
    max_sequences: int = 4


def test_max_tokens_is_what_the_limit_leaves():
    spec = GenerationSpec(prompt=TextPrompt("x"))
    assert check_limits(spec, 8000, Fleet(), 512) == 192
    assert check_limits(spec, 100, Fleet(), 512) == 512
    asked = GenerationSpec(prompt=TextPrompt("x"), max_tokens=8092)
    assert check_limits(asked, 100, Fleet(), 512) == 8092


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "fleet", "field", "message"),
    [
        (9120, None, Fleet(), "prompt", "prompt has 9120 tokens; the limit is 8192"),
        (8192, None, Fleet(), "prompt", "the limit is 8192, which leaves none for the output"),
        (100, 8093, Fleet(), "max_tokens", "prompt has 100 tokens and max_tokens is 8093"),
        (1500, None, Fleet(4096, 1024), "prompt", "the limit is 1024"),
        (1000, 25, Fleet(4096, 1024), "max_tokens", "the limit for both together is 1024"),
    ],
)
def test_what_cannot_fit_model_or_pool_is_too_long(num_prompt_tokens, max_tokens, fleet, field, message):
    spec = GenerationSpec(prompt=TextPrompt("x"), max_tokens=max_tokens)
    with pytest.raises(MeshError) as refusal:
        check_limits(spec, num_prompt_tokens, fleet, 512)
    assert (refusal.value.reason, refusal.value.field) == (Reason.TOO_LONG, field)
    assert message in refusal.value.message


def test_more_choices_than_an_engine_runs_are_refused():
    with pytest.raises(MeshError) as refusal:
        check_limits(GenerationSpec(prompt=TextPrompt("x"), n=5), 1, Fleet(), 512)
    assert (refusal.value.reason, refusal.value.field) == (Reason.INVALID_FIELD, "n")
