"""The spans `prefill` and `decode` of each sequence, under its admit's traceparent."""

import time
from dataclasses import dataclass

from opentelemetry.trace import Tracer

from services.chassis.telemetry import context_from
from services.engine.core.admission import Admission
from services.engine.core.outcome import Counts, Progress, StreamNews


@dataclass(slots=True)
class _Trace:
    traceparent: str
    request_id: str
    choice: int
    num_prompt_tokens: int
    first_token_ns: int = 0
    num_tokens: int = 0


class SequenceSpans:
    """Traces of sequences that live, by stream and handle. Display only: no decision reads its clock."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer = tracer
        self._model = model
        self._traces: dict[tuple[int, int], _Trace] = {}

    def __len__(self) -> int:
        return len(self._traces)

    def admit(self, admission: Admission) -> None:
        self._traces[admission.stream_id, admission.handle] = _Trace(
            admission.traceparent,
            admission.identity.request_id,
            admission.identity.choice_index,
            admission.num_prompt_tokens,
        )

    def note(self, stream_id: int, news: StreamNews) -> None:
        """Follows what a stream is told."""
        for progress in news.progress:
            self._end_prefill(stream_id, progress)
        for row in news.new_ids:
            trace = self._traces.get((stream_id, row.handle))
            if trace is not None:
                trace.num_tokens += len(row.ids)
        for refused in news.refused:
            self._traces.pop((stream_id, refused.handle), None)
        for returned in news.returned:
            self._end_decode(stream_id, returned.handle, returned.reason.name, returned.counts)
        for ended in news.ended:
            self._end_decode(stream_id, ended.handle, ended.reason.name, ended.counts)

    def drop_stream(self, stream_id: int) -> None:
        """The stream broke."""
        for key in [key for key in self._traces if key[0] == stream_id]:
            self._end_decode(*key, "DROPPED", Counts())

    def _end_prefill(self, stream_id: int, progress: Progress) -> None:
        trace = self._traces.get((stream_id, progress.handle))
        if trace is None:
            return
        trace.first_token_ns = time.time_ns()
        self._write(
            "prefill",
            trace,
            trace.first_token_ns - progress.prefill_us * 1000,
            trace.first_token_ns,
            {
                "gen_ai.usage.input_tokens": trace.num_prompt_tokens,
                "pagemesh.cached_tokens": progress.num_cached_tokens,
                "pagemesh.wait_us": progress.wait_us,
            },
        )

    def _end_decode(self, stream_id: int, handle: int, outcome: str, counts: Counts) -> None:
        trace = self._traces.pop((stream_id, handle), None)
        if trace is None or not trace.first_token_ns:
            return
        self._write(
            "decode",
            trace,
            trace.first_token_ns,
            time.time_ns(),
            {
                "gen_ai.usage.output_tokens": trace.num_tokens,
                "pagemesh.outcome": outcome,
                "pagemesh.preemptions": counts.num_preemptions,
            },
        )

    def _write(
        self, name: str, trace: _Trace, start_ns: int, end_ns: int, attributes: dict[str, str | int]
    ) -> None:
        span = self._tracer.start_span(
            name,
            context=context_from(trace.traceparent),
            start_time=start_ns,
            attributes={
                "gen_ai.request.model": self._model,
                "pagemesh.request_id": trace.request_id,
                "pagemesh.choice": trace.choice,
                **attributes,
            },
        )
        span.end(end_ns)
