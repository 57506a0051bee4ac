"""Turns a gateway's Admit into an Admission, or says in one line what is wrong with it."""

import math
from collections.abc import Iterator
from itertools import chain

from pagemesh.v1 import engine_pb2, generation_pb2, scheduler_pb2
from services.contract.errors import MeshError
from services.contract.priority import Priority, priority_of
from services.engine.core.admission import Admission, Attempt, CachePolicy, Identity, Ticket
from services.engine.core.limits import Limits
from services.engine.core.prefix_cache import Retention
from services.engine.step import SamplingSpec

MAX_BIASES = 1024
MAX_STOP_IDS = 1024
MAX_LOGPROBS = 20
MAX_NAME_BYTES = 512
KEY_BYTES = 16

_POLICIES = {
    generation_pb2.CACHE_POLICY_UNSPECIFIED: CachePolicy.USE,
    generation_pb2.CACHE_POLICY_USE: CachePolicy.USE,
    generation_pb2.CACHE_POLICY_READ_ONLY: CachePolicy.READ_ONLY,
    generation_pb2.CACHE_POLICY_BYPASS: CachePolicy.BYPASS,
}
_RANGES = {
    "temperature": (0.0, 100.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


class InvalidAdmitError(Exception):
    """One line without prompt content."""


def admission_of(stream_id: int, admit: engine_pb2.Admit, limits: Limits) -> Admission:
    """Raises InvalidAdmitError."""
    _check(admit, limits)
    return Admission(
        stream_id=stream_id,
        handle=admit.handle,
        identity=Identity(admit.identity.tenant_key, admit.identity.request_id, admit.identity.choice_index),
        attempt=Attempt(admit.attempt.client_attempt, admit.attempt.gateway_attempt),
        ids=tuple(admit.ids),
        num_prompt_tokens=admit.num_prompt_tokens,
        max_output_tokens=admit.max_output_tokens,
        sampling=_sampling(admit, limits),
        priority=_priority(admit),
        age_us=admit.age_us,
        time_left_us=admit.time_left_us,
        cache_salt=admit.cache_salt,
        cache_policy=_POLICIES[admit.cache_policy],
        retention=_retention(admit),
        ticket=_ticket(admit.ticket) if admit.HasField("ticket") else None,
        traceparent=admit.traceparent,
        is_suspect=admit.is_suspect,
    )


def bare_admission(stream_id: int, admit: engine_pb2.Admit) -> Admission:
    """Only what a refusal needs."""
    return Admission(
        stream_id=stream_id,
        handle=admit.handle,
        identity=Identity(b"", "", 0),
        attempt=Attempt(0, 0),
        ids=(),
        num_prompt_tokens=0,
        max_output_tokens=0,
        sampling=SamplingSpec(),
        ticket=_ticket(admit.ticket) if admit.HasField("ticket") else None,
    )


def _check(admit: engine_pb2.Admit, limits: Limits) -> None:
    problems = chain(_shape_problems(admit), _size_problems(admit, limits), _sampling_problems(admit, limits))
    first = next(problems, None)
    if first is not None:
        raise InvalidAdmitError(first)


def _shape_problems(admit: engine_pb2.Admit) -> Iterator[str]:
    if len(admit.identity.tenant_key) != KEY_BYTES:
        yield f"identity.tenant_key has {len(admit.identity.tenant_key)} bytes; it has {KEY_BYTES}"
    if not 0 < len(admit.identity.request_id.encode()) <= MAX_NAME_BYTES:
        yield f"identity.request_id is empty or longer than {MAX_NAME_BYTES} bytes"
    if len(admit.cache_salt) > MAX_NAME_BYTES:
        yield f"cache_salt has {len(admit.cache_salt)} bytes; the limit is {MAX_NAME_BYTES}"
    if admit.HasField("retention") and len(admit.retention.session_key) != KEY_BYTES:
        yield f"retention.session_key has {len(admit.retention.session_key)} bytes; it has {KEY_BYTES}"
    if admit.cache_policy not in _POLICIES:
        yield f"cache_policy {admit.cache_policy} is unknown"
    if admit.constraint_json:
        yield "constraint_json is not supported"


def _size_problems(admit: engine_pb2.Admit, limits: Limits) -> Iterator[str]:
    if not 0 < admit.num_prompt_tokens <= len(admit.ids):
        yield f"num_prompt_tokens is {admit.num_prompt_tokens}; there are {len(admit.ids)} ids"
        return
    if admit.max_output_tokens == 0:
        yield "max_output_tokens is 0"
    total = admit.num_prompt_tokens + admit.max_output_tokens
    limit = min(limits.max_model_len, limits.max_pool_tokens)
    if total > limit or len(admit.ids) > limit:
        yield f"prompt and output need {max(total, len(admit.ids))} tokens; the limit is {limit}"
    if max(admit.ids) >= limits.vocab_size:
        yield f"ids hold one that is not below {limits.vocab_size}"
    if len(admit.stop_ids) > MAX_STOP_IDS:
        yield f"stop_ids has {len(admit.stop_ids)} entries; the limit is {MAX_STOP_IDS}"
    if max(admit.stop_ids, default=0) >= limits.vocab_size:
        yield f"stop_ids hold one that is not below {limits.vocab_size}"


def _sampling_problems(admit: engine_pb2.Admit, limits: Limits) -> Iterator[str]:
    asked = admit.sampling
    for name, (low, high) in _RANGES.items():
        value = getattr(asked, name)
        if not low <= value <= high:
            yield f"sampling.{name} is {value}; it is {low:g}..{high:g}"
    if asked.HasField("top_p") and not 0 < asked.top_p <= 1:
        yield f"sampling.top_p is {asked.top_p}; it is above 0 and at most 1"
    if asked.top_k < -1:
        yield f"sampling.top_k is {asked.top_k}; it is at least -1"
    if asked.HasField("repetition_penalty") and not 0 < asked.repetition_penalty <= 100:
        yield f"sampling.repetition_penalty is {asked.repetition_penalty}; it is above 0 and at most 100"
    if asked.logprobs > MAX_LOGPROBS:
        yield f"sampling.logprobs is {asked.logprobs}; the limit is {MAX_LOGPROBS}"
    yield from _bias_problems(asked, limits)


def _bias_problems(asked: generation_pb2.SamplingParams, limits: Limits) -> Iterator[str]:
    biases = asked.logit_bias
    if len(biases) > MAX_BIASES:
        yield f"sampling.logit_bias has {len(biases)} entries; the limit is {MAX_BIASES}"
    if len({bias.token_id for bias in biases}) != len(biases):
        yield "sampling.logit_bias names an id twice"
    for bias in biases:
        if not 0 <= bias.token_id < limits.vocab_size:
            yield f"sampling.logit_bias names id {bias.token_id}; ids are below {limits.vocab_size}"
        if not math.fabs(bias.bias) <= 100:
            yield f"sampling.logit_bias is {bias.bias}; it is -100..100"


def _sampling(admit: engine_pb2.Admit, limits: Limits) -> SamplingSpec:
    asked = admit.sampling
    top_k = asked.top_k if 0 < asked.top_k < limits.vocab_size else 0
    return SamplingSpec(
        temperature=asked.temperature if asked.HasField("temperature") else 1.0,
        top_k=top_k,
        top_p=asked.top_p if asked.HasField("top_p") else 1.0,
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty if asked.HasField("repetition_penalty") else 1.0,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        min_tokens=asked.min_tokens,
        logit_bias=tuple((bias.token_id, bias.bias) for bias in asked.logit_bias),
        logprobs=asked.logprobs if asked.HasField("logprobs") else None,
        stop_ids=frozenset(admit.stop_ids),
        seed=admit.seed,
        choice=admit.identity.choice_index,
    )


def _priority(admit: engine_pb2.Admit) -> Priority:
    try:
        return priority_of(admit.priority)
    except MeshError as error:
        raise InvalidAdmitError(str(error)) from error


def _retention(admit: engine_pb2.Admit) -> Retention | None:
    if not admit.HasField("retention") or admit.retention.ttl_s == 0:
        return None
    return Retention(admit.retention.session_key, admit.retention.ttl_s * 1_000_000)


def _ticket(ticket: scheduler_pb2.Ticket) -> Ticket:
    return Ticket(
        scheduler_boot_id=ticket.scheduler_boot_id,
        number=ticket.number,
        engine_boot_id=ticket.engine_boot_id,
        batch_id=ticket.batch_id,
        batch_size=ticket.batch_size,
    )
