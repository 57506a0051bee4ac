"""The words of a request's end: `complete`, and the receipt that every end carries."""

from dataclasses import dataclass
from typing import cast

from pagemesh.v1 import gateway_pb2, generation_pb2
from services.contract.status import cut
from services.gateway.encoding import EncodedPrompt
from services.gateway.life.account import Account
from services.gateway.life.hop_clock import HopClock, Stage
from services.gateway.life.request import RequestLife
from services.gateway.life.request_words import ChoiceEnd, Complete

MAX_NAME_BYTES = 128
"""Of what peers say of themselves: a receipt must fit into a status's details."""


@dataclass(slots=True)
class EndFacts:
    """What is known of a request so far; None where it did not get that far."""

    hops: HopClock
    trace_id: str
    prompt: EncodedPrompt | None = None
    life: RequestLife | None = None
    first_token_s: float | None = None
    is_history_saved: bool | None = None
    """None without a session."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt.ids) if self.prompt is not None else 0

    @property
    def engine_id(self) -> str:
        """Of the engine that last computed for it."""
        engine = self.life.account.engine if self.life is not None else None
        return engine.engine_id if engine is not None else ""

    def output_ids(self, choice: int) -> list[int]:
        """Accepted ids of a choice."""
        return self.life.choices[choice].output_ids if self.life is not None else []

    @property
    def num_output_tokens(self) -> int:
        return sum(len(choice.output_ids) for choice in self.life.choices) if self.life is not None else 0


def receipt_words(facts: EndFacts, now: float) -> generation_pb2.Receipt:
    """The account until now; its hops sum to the elapsed time."""
    account = facts.life.account if facts.life is not None else Account()
    arrived_s = facts.hops.arrived_s
    receipt = generation_pb2.Receipt(
        hops=_hop_words(facts.hops, now),
        elapsed_ms=(now - arrived_s) * 1e3,
        ttft_ms=(facts.first_token_s - arrived_s) * 1e3 if facts.first_token_s is not None else 0.0,
        queue_reason=cut(account.queue_reason, MAX_NAME_BYTES),
        prompt_tokens=facts.num_prompt_tokens,
        cached_tokens=account.num_cached,
        computed_tokens=account.num_computed,
        recomputed_tokens=account.num_recomputed,
        output_tokens=facts.num_output_tokens,
        discarded_tokens=account.num_discarded,
        preemptions=account.num_preemptions,
        moves=account.num_moves,
        stale_tokens=account.num_stale,
        trace_id=facts.trace_id,
        tier=cast(generation_pb2.ExactnessTier, int(account.tier)),
        history_saved=facts.is_history_saved,
    )
    if account.engine is not None:
        receipt.engine_id = cut(account.engine.engine_id, MAX_NAME_BYTES)
        receipt.system_fingerprint = cut(account.engine.fingerprint, MAX_NAME_BYTES)
    if facts.prompt is not None:
        receipt.session_mode = facts.prompt.session_mode
        receipt.truncated_tokens = facts.prompt.num_truncated
    return receipt


def complete_words(
    facts: EndFacts, end: Complete, session_version: int | None, now: float
) -> gateway_pb2.Complete:
    """The good end."""
    receipt = receipt_words(facts, now)
    usage = gateway_pb2.Usage(
        prompt_tokens=facts.num_prompt_tokens,
        completion_tokens=facts.num_output_tokens,
        total_tokens=facts.num_prompt_tokens + facts.num_output_tokens,
        cached_tokens=receipt.cached_tokens,
    )
    choices = [_choice_words(choice) for choice in end.choices]
    return gateway_pb2.Complete(
        choices=choices, usage=usage, receipt=receipt, session_version=session_version
    )


def _choice_words(end: ChoiceEnd) -> gateway_pb2.ChoiceResult:
    return gateway_pb2.ChoiceResult(
        choice=end.choice,
        finish_reason=cast(generation_pb2.FinishReason, int(end.finish.reason)),
        stop_id=end.finish.stop_id,
        stop_text=end.finish.stop_text,
        num_tokens=end.num_tokens,
        final_text=end.final_text,
    )


def _hop_words(hops: HopClock, now: float) -> generation_pb2.HopTimes:
    spent = hops.spent(now)
    return generation_pb2.HopTimes(
        receive_ms=spent[Stage.RECEIVE] * 1e3,
        encode_ms=spent[Stage.ENCODE] * 1e3,
        queue_ms=spent[Stage.QUEUE] * 1e3,
        dispatch_ms=spent[Stage.DISPATCH] * 1e3,
        prefill_ms=spent[Stage.PREFILL] * 1e3,
        decode_ms=spent[Stage.DECODE] * 1e3,
        detokenize_ms=spent[Stage.DETOKENIZE] * 1e3,
        deliver_ms=spent[Stage.DELIVER] * 1e3,
    )
