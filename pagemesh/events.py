"""What a caller sees of a stream: frozen events, and the answer they add up to.

Knows the wire's messages; knows nothing of channels, retries or resumes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pagemesh.v1 import gateway_pb2, generation_pb2


class FinishReason(StrEnum):
    """Why a choice ended well."""

    STOP = "stop"
    LENGTH = "length"
    RUN_TIME = "run_time"
    UNKNOWN = "unknown"
    """A newer mesh's word."""


class ExactnessTier(StrEnum):
    """What was promised of the answer's ids."""

    UNKNOWN = "unknown"
    BIT_IDENTICAL = "bit_identical"
    SAME_TOKENS = "same_tokens"
    CONTINUED = "continued"


@dataclass(frozen=True, slots=True)
class Started:
    """First event of every stream."""

    seq_id: int
    request_id: str
    seed: int
    is_resumable: bool
    prompt_ids: tuple[int, ...]
    """Empty where the stream is not resumable."""
    num_prompt_tokens: int
    model_revision: str
    system_fingerprint: str
    session_version: int | None
    trace_id: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The stream broke and goes on at this address; nothing was lost or repeated."""

    seq_id: int
    address: str
    client_attempt: int
    trace_id: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate with the natural logarithm of its probability under the raw logits."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class OutputLogprobs:
    """Belongs to one output token."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New ids of one choice, with the text that became certain with them."""

    seq_id: int
    choice: int
    first_output_index: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[OutputLogprobs, ...]
    """One per id if asked for, else empty."""


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """How one choice ended."""

    choice: int
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop id or stop text that ended it."""
    num_tokens: int
    final_text: str
    """Text still held back when the run time ended; belongs to the answer."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of ids."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Partition of the time from arrival at the gateway to `complete` written, in milliseconds."""

    receive_ms: float
    encode_ms: float
    queue_ms: float
    dispatch_ms: float
    prefill_ms: float
    decode_ms: float
    detokenize_ms: float
    deliver_ms: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one request; every end carries one."""

    hops: HopTimes
    elapsed_ms: float
    ttft_ms: float
    queue_reason: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    output_tokens: int
    discarded_tokens: int
    preemptions: int
    moves: int
    stale_tokens: int
    truncated_tokens: int
    engine_id: str
    system_fingerprint: str
    trace_id: str
    tier: ExactnessTier
    history_saved: bool | None
    """None without a session."""
    session_mode: str


@dataclass(frozen=True, slots=True)
class Complete:
    """Ends every good stream, once."""

    seq_id: int
    choices: tuple[ChoiceResult, ...]
    usage: Usage
    receipt: Receipt
    session_version: int | None
    """After this turn, if it was saved."""


Event = Started | Resumed | TokenChunk | Complete


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole choice."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[OutputLogprobs, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole stream, collected."""

    started: Started
    choices: tuple[Choice, ...]
    complete: Complete

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def usage(self) -> Usage:
        return self.complete.usage

    @property
    def receipt(self) -> Receipt:
        return self.complete.receipt


def collect(events: Iterable[Event]) -> Answer:
    """Adds a stream up. Raises ValueError if it has no `started` or no `complete`."""
    started: Started | None = None
    complete: Complete | None = None
    chunks: list[TokenChunk] = []
    for event in events:
        match event:
            case Started():
                started = event
            case TokenChunk():
                chunks.append(event)
            case Complete():
                complete = event
            case Resumed():
                pass
    if started is None or complete is None:
        raise ValueError("the stream has no start or no end")
    return Answer(started, tuple(_choice(result, chunks) for result in complete.choices), complete)


def _choice(result: ChoiceResult, chunks: list[TokenChunk]) -> Choice:
    own = [chunk for chunk in chunks if chunk.choice == result.choice]
    return Choice(
        text="".join(chunk.text for chunk in own) + result.final_text,
        ids=tuple(token_id for chunk in own for token_id in chunk.ids),
        logprobs=tuple(entry for chunk in own for entry in chunk.logprobs),
        finish_reason=result.finish_reason,
        stop_reason=result.stop_reason,
    )


_FINISH = {
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_RUN_TIME: FinishReason.RUN_TIME,
}

_TIER = {
    generation_pb2.EXACTNESS_TIER_UNSPECIFIED: ExactnessTier.UNKNOWN,
    generation_pb2.EXACTNESS_TIER_BIT_IDENTICAL: ExactnessTier.BIT_IDENTICAL,
    generation_pb2.EXACTNESS_TIER_SAME_TOKENS: ExactnessTier.SAME_TOKENS,
    generation_pb2.EXACTNESS_TIER_CONTINUED: ExactnessTier.CONTINUED,
}


def started_of(seq_id: int, message: gateway_pb2.Started) -> Started:
    return Started(
        seq_id=seq_id,
        request_id=message.request_id,
        seed=message.seed,
        is_resumable=message.resumable,
        prompt_ids=tuple(message.prompt_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        model_revision=message.model_revision,
        system_fingerprint=message.system_fingerprint,
        session_version=message.session_version if message.HasField("session_version") else None,
        trace_id=message.trace_id,
    )


def token_chunk_of(seq_id: int, message: gateway_pb2.Token) -> TokenChunk:
    return TokenChunk(
        seq_id=seq_id,
        choice=message.choice,
        first_output_index=message.first_output_index,
        ids=tuple(message.ids),
        text=message.text,
        logprobs=tuple(_output_logprobs(entry) for entry in message.logprobs),
    )


def complete_of(seq_id: int, message: gateway_pb2.Complete) -> Complete:
    usage = message.usage
    return Complete(
        seq_id=seq_id,
        choices=tuple(_choice_result(choice) for choice in message.choices),
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens),
        receipt=receipt_of(message.receipt),
        session_version=message.session_version if message.HasField("session_version") else None,
    )


def receipt_of(message: generation_pb2.Receipt) -> Receipt:
    hops = message.hops
    return Receipt(
        hops=HopTimes(
            receive_ms=hops.receive_ms,
            encode_ms=hops.encode_ms,
            queue_ms=hops.queue_ms,
            dispatch_ms=hops.dispatch_ms,
            prefill_ms=hops.prefill_ms,
            decode_ms=hops.decode_ms,
            detokenize_ms=hops.detokenize_ms,
            deliver_ms=hops.deliver_ms,
        ),
        elapsed_ms=message.elapsed_ms,
        ttft_ms=message.ttft_ms,
        queue_reason=message.queue_reason,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        computed_tokens=message.computed_tokens,
        recomputed_tokens=message.recomputed_tokens,
        output_tokens=message.output_tokens,
        discarded_tokens=message.discarded_tokens,
        preemptions=message.preemptions,
        moves=message.moves,
        stale_tokens=message.stale_tokens,
        truncated_tokens=message.truncated_tokens,
        engine_id=message.engine_id,
        system_fingerprint=message.system_fingerprint,
        trace_id=message.trace_id,
        tier=_TIER.get(message.tier, ExactnessTier.UNKNOWN),
        history_saved=message.history_saved if message.HasField("history_saved") else None,
        session_mode=message.session_mode,
    )


def _choice_result(message: gateway_pb2.ChoiceResult) -> ChoiceResult:
    match message.WhichOneof("stop_reason"):
        case "stop_id":
            stop_reason: int | str | None = message.stop_id
        case "stop_text":
            stop_reason = message.stop_text
        case _:
            stop_reason = None
    return ChoiceResult(
        choice=message.choice,
        finish_reason=_FINISH.get(message.finish_reason, FinishReason.UNKNOWN),
        stop_reason=stop_reason,
        num_tokens=message.num_tokens,
        final_text=message.final_text,
    )


def _output_logprobs(message: generation_pb2.OutputLogprobs) -> OutputLogprobs:
    return OutputLogprobs(
        chosen=TokenLogprob(message.chosen.token_id, message.chosen.logprob),
        top=tuple(TokenLogprob(entry.token_id, entry.logprob) for entry in message.top),
    )
