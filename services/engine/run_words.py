"""Puts news into a RunResponse: one step is one message for all of a gateway's sequences, in columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagemesh.v1 import engine_pb2
from services.engine.core.outcome import Counts, NewIds, StreamNews

MAX_DETAIL_BYTES = 200


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of the step whose news are told."""

    number: int
    step_us: int
    device_us: int


def run_response(news: StreamNews, times: StepTimes) -> engine_pb2.RunResponse:
    """Everything that one stream is told at once."""
    response = engine_pb2.RunResponse()
    for refused in news.refused:
        detail = refused.detail.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore")
        response.refused.add(
            handle=refused.handle, refusal=engine_pb2.RunRefusal.ValueType(refused.refusal), detail=detail
        )
    for progress in news.progress:
        response.progress.add(
            handle=progress.handle,
            num_cached_tokens=progress.num_cached_tokens,
            wait_us=progress.wait_us,
            prefill_us=progress.prefill_us,
        )
    if news.new_ids:
        _fill_step(response.step, news.new_ids, times)
    for returned in news.returned:
        reason = engine_pb2.ReturnReason.ValueType(returned.reason)
        response.returned.add(handle=returned.handle, reason=reason, counts=_counts(returned.counts))
    for ended in news.ended:
        end = engine_pb2.EndReason.ValueType(ended.reason)
        response.ended.add(handle=ended.handle, reason=end, counts=_counts(ended.counts))
    return response


def _fill_step(step: engine_pb2.Step, rows: Sequence[NewIds], times: StepTimes) -> None:
    step.step_number = times.number
    step.step_us = times.step_us
    step.device_us = times.device_us
    step.handles.extend([row.handle for row in rows])
    step.attempts.extend([row.gateway_attempt for row in rows])
    step.first_output_indexes.extend([row.first_output_index for row in rows])
    step.num_ids.extend([len(row.ids) for row in rows])
    step.ids.extend([drawn for row in rows for drawn in row.ids])
    if any(row.logprobs is not None for row in rows):
        _fill_logprobs(step, rows)


def _fill_logprobs(step: engine_pb2.Step, rows: Sequence[NewIds]) -> None:
    for row in rows:
        if row.logprobs is None:
            step.num_logprobs.extend([0] * len(row.ids))
            continue
        for logprobs in row.logprobs:
            step.num_logprobs.append(len(logprobs.ids))
            step.logprob_ids.extend(logprobs.ids)
            step.logprobs.extend(logprobs.values)


def _counts(counts: Counts) -> engine_pb2.Counts:
    return engine_pb2.Counts(
        num_cached_tokens=counts.num_cached_tokens,
        num_computed_tokens=counts.num_computed_tokens,
        num_recomputed_tokens=counts.num_recomputed_tokens,
        num_preemptions=counts.num_preemptions,
    )
