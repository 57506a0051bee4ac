"""A resume token is good for one stream of one tenant and nothing else."""

from dataclasses import replace

import pytest

from services.contract.errors import MeshError, Reason
from services.contract.priority import Priority
from services.gateway.access.identity import Tenant
from services.gateway.access.resume_token import (
    ResumeClaims,
    StreamFacts,
    make_resume_token,
    verify_resume_token,
)
from services.gateway.life.request_words import Tier
from services.gateway.spec.generation_spec import (
    GenerationSpec,
    Resume,
    Sampling,
    SessionTurn,
    Stop,
    TextPrompt,
)

KEY = b"k" * 32
TENANT = Tenant("acme", b"a" * 16)
SPEC = GenerationSpec(prompt=TextPrompt("x"), model="m", session=SessionTurn("s", "u", 3))
FACTS = StreamFacts("r", 2**64 - 1, (1, 2, 3), "rev", "tpl")
CLAIMS = ResumeClaims(512, 3, "0123456789abcdef", Tier.SAME_TOKENS)
TOKEN = make_resume_token(KEY, TENANT, SPEC, FACTS, CLAIMS)


def refused(key=KEY, tenant=TENANT, spec=SPEC, facts=FACTS, token=TOKEN):
    with pytest.raises(MeshError) as refusal:
        verify_resume_token(key, tenant, spec, facts, token)
    return refusal.value.reason is Reason.RESUME_MISMATCH


def test_it_brings_back_what_the_first_gateway_settled():
    assert verify_resume_token(KEY, TENANT, SPEC, FACTS, TOKEN) == CLAIMS
    for claims in (
        ResumeClaims(1, None),
        ResumeClaims(1, 0, "fingerprint of another engine's kind \u00e9" * 9),
    ):
        token = make_resume_token(KEY, TENANT, SPEC, FACTS, claims)
        assert verify_resume_token(KEY, TENANT, SPEC, FACTS, token) == claims


def test_how_a_caller_asks_again_does_not_matter():
    again = replace(
        SPEC,
        request_id="r",
        client_attempt=4,
        seed=FACTS.seed,
        priority=Priority.BATCH,
        max_queue_wait_s=1.0,
        resume=Resume(7, FACTS.prompt_ids, ((),), TOKEN),
    )
    assert verify_resume_token(KEY, TENANT, again, FACTS, TOKEN) == CLAIMS


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, model="n"),
        replace(SPEC, n=2),
        replace(SPEC, max_tokens=512),
        replace(SPEC, sampling=Sampling(temperature=0.5)),
        replace(SPEC, sampling=Sampling(logit_bias=((1, 1.0),))),
        replace(SPEC, sampling=Sampling(logprobs=0)),
        replace(SPEC, stop=Stop(texts=("a",))),
        replace(SPEC, stop=Stop(ids=(1,))),
        replace(SPEC, stop=Stop(include_stop=True)),
        replace(SPEC, skip_special_tokens=False),
        replace(SPEC, session=None),
        replace(SPEC, session=SessionTurn("s", "v", 3)),
        replace(SPEC, session=SessionTurn("s", "u", 3, 0)),
    ],
)
def test_another_request_is_a_mismatch(spec):
    assert refused(spec=spec)


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, request_id="q"),
        replace(FACTS, seed=1),
        replace(FACTS, prompt_ids=(1, 2)),
        replace(FACTS, prompt_ids=(1, 3, 2)),
        replace(FACTS, revision="rev2"),
        replace(FACTS, template_sha256="tpl2"),
    ],
)
def test_another_stream_revision_or_template_is_a_mismatch(facts):
    assert refused(facts=facts)


def test_another_tenant_or_deployment_gets_nothing():
    assert refused(tenant=Tenant("globex", b"a" * 16))
    assert refused(key=b"other")


def test_every_changed_bit_and_every_cut_is_a_mismatch():
    for bit in range(len(TOKEN) * 8):
        forged = bytearray(TOKEN)
        forged[bit // 8] ^= 1 << bit % 8
        assert refused(token=bytes(forged))
    for size in range(len(TOKEN)):
        assert refused(token=TOKEN[:size])
    assert refused(token=TOKEN + b"\0")
