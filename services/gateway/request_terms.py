"""What a request tells schedulers and engines of itself, over and over: the constant part of their messages.

It only words protobuf messages; times left are computed when a message is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pagemesh.v1 import engine_pb2, generation_pb2, scheduler_pb2
from services.contract.priority import Priority
from services.gateway.life.request_words import Admit, Enqueue, Ticket
from services.gateway.spec.generation_spec import CachePolicy


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """Fixed once the prompt is encoded. Times are seconds on the gateway's clock."""

    model: str
    tenant_key: bytes
    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    seed: int
    sampling: generation_pb2.SamplingParams
    stop_ids: Sequence[int]
    priority: Priority
    cache_salt: bytes
    cache_policy: CachePolicy
    session_key: bytes
    """Empty without a session."""
    retention_ttl_s: int
    head_block_hashes: bytes
    arrived_s: float
    deadline_s: float | None

    def enqueue(self, command: Enqueue, handle: int, traceparent: str, now: float) -> scheduler_pb2.Enqueue:
        """The words for a scheduler."""
        return scheduler_pb2.Enqueue(
            handle=handle,
            model=self.model,
            tenant_key=self.tenant_key,
            request_id=self.request_id,
            priority=_priority(self.priority),
            num_sequences=command.num_sequences,
            num_prompt_tokens=command.num_known_ids,
            max_output_tokens=command.max_output_left,
            head_block_hashes=self.head_block_hashes,
            age_us=_microseconds(now - self.arrived_s),
            time_left_us=_time_left_us(self.deadline_s, now),
            queue_time_left_us=_time_left_us(command.queue_deadline_s, now),
            num_crashes=command.num_crashes,
            avoid_engine_ids=command.avoid_engine_ids,
            preferred_engine_id=command.preferred_engine_id,
            preferred_fingerprint=command.preferred_fingerprint,
            was_admitted=command.was_admitted,
            was_accepted=command.was_accepted,
            traceparent=traceparent,
        )

    def admit(self, command: Admit, handle: int, traceparent: str, now: float) -> engine_pb2.Admit:
        """The words for an engine: all ids known so far."""
        message = engine_pb2.Admit(
            handle=handle,
            identity=engine_pb2.Identity(
                tenant_key=self.tenant_key, request_id=self.request_id, choice_index=command.choice
            ),
            attempt=engine_pb2.Attempt(
                client_attempt=command.attempt.client, gateway_attempt=command.attempt.gateway
            ),
            ids=self.prompt_ids,
            num_prompt_tokens=len(self.prompt_ids),
            max_output_tokens=self.max_tokens,
            sampling=self.sampling,
            seed=self.seed,
            stop_ids=self.stop_ids,
            priority=_priority(self.priority),
            age_us=_microseconds(now - self.arrived_s),
            time_left_us=_time_left_us(self.deadline_s, now),
            cache_salt=self.cache_salt,
            cache_policy=cast(generation_pb2.CachePolicy, int(self.cache_policy)),
            ticket=_ticket(command.ticket),
            traceparent=traceparent,
            is_suspect=command.is_suspect,
        )
        message.ids.extend(command.output_ids)
        if self.session_key:
            message.retention.session_key = self.session_key
            message.retention.ttl_s = self.retention_ttl_s
        return message


def _priority(priority: Priority) -> generation_pb2.Priority:
    return cast(generation_pb2.Priority, int(priority))


def _ticket(ticket: Ticket) -> scheduler_pb2.Ticket:
    return scheduler_pb2.Ticket(
        scheduler_boot_id=ticket.scheduler_boot_id,
        number=ticket.number,
        engine_boot_id=ticket.engine_boot_id,
        batch_id=ticket.batch_id,
        batch_size=ticket.batch_size,
    )


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _time_left_us(limit_s: float | None, now: float) -> int:
    """0 is "no limit" on the wire, so a limit that has passed is one microsecond."""
    return 0 if limit_s is None else max(1, _microseconds(limit_s - now))
