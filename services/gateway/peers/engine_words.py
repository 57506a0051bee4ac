"""What engines say, in the words of a request's life. Knows no streams and no requests."""

from collections.abc import Iterator
from typing import NamedTuple

from pagemesh.v1 import engine_pb2
from services.gateway.life.request_words import (
    AdmitRefusal,
    ChoiceLogprobs,
    Counts,
    EndCause,
    EngineFacts,
    ReturnCause,
    Tier,
)

_REFUSALS = {
    engine_pb2.RUN_REFUSAL_WRONG_BOOT: AdmitRefusal.WRONG_BOOT,
    engine_pb2.RUN_REFUSAL_DRAINING: AdmitRefusal.DRAINING,
    engine_pb2.RUN_REFUSAL_NO_ROOM: AdmitRefusal.NO_ROOM,
    engine_pb2.RUN_REFUSAL_STALE: AdmitRefusal.STALE,
}
_RETURNS = {
    engine_pb2.RETURN_REASON_SUSPECT: ReturnCause.SUSPECT,
    engine_pb2.RETURN_REASON_DRAINING: ReturnCause.DRAINING,
}
_ENDS = {
    engine_pb2.END_REASON_STOP: EndCause.STOP,
    engine_pb2.END_REASON_LENGTH: EndCause.LENGTH,
    engine_pb2.END_REASON_CANCELLED: EndCause.CANCELLED,
    engine_pb2.END_REASON_DEADLINE: EndCause.DEADLINE,
    engine_pb2.END_REASON_BAD_LOGITS: EndCause.BAD_LOGITS,
}
_TIERS: dict[int, Tier] = {int(tier): tier for tier in Tier}


class StepRow(NamedTuple):
    """One sequence's part of a step."""

    handle: int
    attempt: int
    first_index: int
    ids: list[int]
    logprobs: list[ChoiceLogprobs] | None
    """None if it did not ask for them."""


def admit_refusal(refused: engine_pb2.AdmitRefused) -> AdmitRefusal:
    """Why an admit was not taken."""
    return _REFUSALS.get(refused.refusal, AdmitRefusal.INVALID)


def return_cause(returned: engine_pb2.Returned) -> ReturnCause:
    """Why a sequence came back."""
    return _RETURNS.get(returned.reason, ReturnCause.NO_STEP)


def end_cause(ended: engine_pb2.Ended) -> EndCause:
    """How a sequence ended."""
    return _ENDS.get(ended.reason, EndCause.LENGTH)


def engine_facts(info: engine_pb2.EngineInfo) -> EngineFacts:
    """What an engine declares of itself."""
    return EngineFacts(
        engine_id=info.engine_id,
        boot_id=info.boot_id,
        fingerprint=info.fingerprint_hash,
        revision=info.fingerprint.model_revision,
        tier=_TIERS.get(info.tier, Tier.CONTINUED),
    )


def account_of(counts: engine_pb2.Counts) -> Counts:
    """An engine's account of one admission."""
    return Counts(
        num_cached=counts.num_cached_tokens,
        num_computed=counts.num_computed_tokens,
        num_recomputed=counts.num_recomputed_tokens,
        num_preemptions=counts.num_preemptions,
    )


def is_consistent(step: engine_pb2.Step) -> bool:
    """False if its columns do not belong together: then nothing in it can be believed."""
    num_rows = len(step.handles)
    columns = (step.attempts, step.first_output_indexes, step.num_ids)
    return (
        all(len(column) == num_rows for column in columns)
        and sum(step.num_ids) == len(step.ids)
        and len(step.num_logprobs) in (0, len(step.ids))
        and sum(step.num_logprobs) == len(step.logprob_ids) == len(step.logprobs)
    )


def step_rows(step: engine_pb2.Step) -> Iterator[StepRow]:
    """The rows of a consistent step."""
    ids = list(step.ids)
    logprobs = _logprobs(step) if step.num_logprobs else None
    begin = 0
    rows = zip(step.handles, step.attempts, step.first_output_indexes, step.num_ids, strict=True)
    for handle, attempt, first_index, num_ids in rows:
        end = begin + num_ids
        row_logprobs = _asked(logprobs[begin:end]) if logprobs is not None else None
        yield StepRow(handle, attempt, first_index, ids[begin:end], row_logprobs)
        begin = end


def _asked(columns: list[ChoiceLogprobs]) -> list[ChoiceLogprobs] | None:
    """None for a row that shares a step with one that asked for log-probabilities, but did not."""
    return columns if any(column.ids for column in columns) else None


def _logprobs(step: engine_pb2.Step) -> list[ChoiceLogprobs]:
    """One per id of the step; ids that asked for none have empty ones."""
    ids, values = tuple(step.logprob_ids), tuple(step.logprobs)
    columns, begin = [], 0
    for num in step.num_logprobs:
        columns.append(ChoiceLogprobs(ids[begin : begin + num], values[begin : begin + num]))
        begin += num
    return columns
