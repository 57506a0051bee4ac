"""Protobuf to the core's words and back. What breaks the contract is said once, here, item by item."""

from collections.abc import Iterable, Iterator

from pagemesh.v1 import engine_pb2, scheduler_pb2
from services.contract.errors import invalid_field
from services.contract.priority import Priority, priority_of
from services.scheduler.core.commands import News, Placed, Refused, ReportWaiting
from services.scheduler.core.credit import Room
from services.scheduler.core.engines import Engine, EngineFacts, EngineReport
from services.scheduler.core.fleet import ModelFacts
from services.scheduler.core.placement import Explanation
from services.scheduler.core.request import Request

US = 1_000_000
TENANT_KEY_BYTES = 16
HASH_BYTES = 16
MAX_NAME_CHARS = 256
MAX_AVOIDED = 64


def to_request(enqueue: scheduler_pb2.Enqueue) -> Request:
    """The core's request. Raises MeshError naming the field that breaks the contract."""
    _check(enqueue)
    return Request(
        handle=enqueue.handle,
        model=enqueue.model,
        tenant_key=enqueue.tenant_key,
        priority=priority_of(enqueue.priority),
        num_prompt_tokens=enqueue.num_prompt_tokens,
        max_output_tokens=enqueue.max_output_tokens,
        num_sequences=enqueue.num_sequences or 1,
        request_id=enqueue.request_id,
        age_s=enqueue.age_us / US,
        time_left_s=_limit(enqueue.time_left_us),
        queue_time_left_s=_limit(enqueue.queue_time_left_us),
        num_crashes=enqueue.num_crashes,
        avoid_engine_ids=frozenset(enqueue.avoid_engine_ids),
        preferred_engine_id=enqueue.preferred_engine_id,
        preferred_fingerprint=enqueue.preferred_fingerprint,
        was_admitted=enqueue.was_admitted,
        was_accepted=enqueue.was_accepted or enqueue.was_admitted,
        traceparent=enqueue.traceparent,
    )


def nameless(enqueue: scheduler_pb2.Enqueue) -> Request:
    """Stands for an enqueue that is no valid request: a handle to answer, and where the answer is traced."""
    return Request(
        handle=enqueue.handle,
        model="",
        tenant_key=b"",
        priority=Priority.INTERACTIVE,
        num_prompt_tokens=0,
        traceparent=enqueue.traceparent,
    )


def _check(enqueue: scheduler_pb2.Enqueue) -> None:
    if not 0 < len(enqueue.model) <= MAX_NAME_CHARS:
        raise invalid_field(
            "model", f"model has {len(enqueue.model)} characters; the limit is {MAX_NAME_CHARS}"
        )
    if len(enqueue.tenant_key) != TENANT_KEY_BYTES:
        raise invalid_field("tenant_key", f"tenant_key has {len(enqueue.tenant_key)} bytes; 16 are valid")
    if enqueue.num_prompt_tokens < 1:
        raise invalid_field("num_prompt_tokens", "num_prompt_tokens is 0; at least 1 is valid")
    if len(enqueue.head_block_hashes) % HASH_BYTES:
        raise invalid_field("head_block_hashes", "head_block_hashes is no multiple of 16 bytes")
    if len(enqueue.avoid_engine_ids) > MAX_AVOIDED:
        raise invalid_field("avoid_engine_ids", f"avoid_engine_ids has more than {MAX_AVOIDED} entries")


def _limit(left_us: int) -> float | None:
    return left_us / US if left_us else None


def to_facts(info: engine_pb2.EngineInfo, dialled: str) -> EngineFacts:
    """An engine's hello. Raises MeshError if it cannot be placed on."""
    for field in ("engine_id", "boot_id", "model"):
        if not getattr(info, field):
            raise invalid_field(field, f"{field} is empty")
    if not (info.block_size and info.max_model_len and info.max_pool_tokens and info.max_sequences):
        raise invalid_field("hello", "block size and limits are at least 1; one is 0")
    return EngineFacts(
        engine_id=info.engine_id,
        boot_id=info.boot_id,
        address=info.address or dialled,
        model=info.model,
        fingerprint_hash=info.fingerprint_hash,
        revision=info.fingerprint.model_revision,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        max_pool_tokens=info.max_pool_tokens,
        max_sequences=info.max_sequences,
        vocab_size=info.vocab_size,
    )


def to_report(report: engine_pb2.EngineReport) -> EngineReport:
    """An engine's report. Raises MeshError for a class that is none."""

    def named(outcome: engine_pb2.TicketOutcome) -> tuple[int, ...]:
        return tuple(news.number for news in report.tickets if news.outcome == outcome)

    return EngineReport(
        room={priority_of(room.priority): Room(room.num_sequences, room.num_tokens) for room in report.room},
        admitted=named(engine_pb2.TICKET_OUTCOME_ADMITTED),
        refused=named(engine_pb2.TICKET_OUTCOME_REFUSED),
        ended=named(engine_pb2.TICKET_OUTCOME_ENDED),
        num_running=report.num_running,
        num_waiting=report.num_waiting,
        is_draining=report.is_draining,
    )


def from_placed(placed: Placed, scheduler_boot_id: str) -> scheduler_pb2.Placed:
    """The answer with its tickets."""
    tickets = [
        scheduler_pb2.Ticket(
            scheduler_boot_id=scheduler_boot_id,
            number=ticket.number,
            engine_boot_id=ticket.engine_boot_id,
            batch_id=ticket.batch_id,
            batch_size=ticket.batch_size,
        )
        for ticket in placed.tickets
    ]
    return scheduler_pb2.Placed(
        handle=placed.request.handle,
        engine_id=placed.engine.engine_id,
        address=placed.engine.address,
        tickets=tickets,
        queued_us=round(placed.queued_s * US),
        queue_reason=placed.reason,
    )


def from_refused(refused: Refused) -> scheduler_pb2.Refused:
    """The answer with its advice."""
    return scheduler_pb2.Refused(
        handle=refused.request.handle,
        refusal=f"PLACE_REFUSAL_{refused.refusal.name}",
        retry_delay_us=round(refused.retry_delay_s * US),
    )


def from_news(news: News) -> scheduler_pb2.QueueNews:
    """How a handle stands."""
    return scheduler_pb2.QueueNews(handle=news.handle, num_ahead=news.num_ahead)


def from_models(models: Iterable[ModelFacts]) -> Iterator[scheduler_pb2.ModelState]:
    """The fleet's models."""
    for each in models:
        yield scheduler_pb2.ModelState(
            model=each.model,
            num_engines=each.num_engines,
            max_model_len=each.max_model_len,
            max_pool_tokens=each.max_pool_tokens,
            max_sequences=each.max_sequences,
            vocab_size=each.vocab_size,
            block_size=each.block_size,
            revision=each.revision,
        )


def from_class(
    priority: Priority, num_sequences: int, num_tokens: int, age_s: float
) -> scheduler_pb2.ClassQueue:
    """One class's queue."""
    return scheduler_pb2.ClassQueue(
        priority=f"PRIORITY_{priority.name}",
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        oldest_age_us=round(age_s * US),
    )


def from_engine(engine: Engine) -> scheduler_pb2.EngineState:
    """One engine process as this scheduler sees it."""
    return scheduler_pb2.EngineState(
        engine_id=engine.facts.engine_id,
        boot_id=engine.facts.boot_id,
        address=engine.facts.address,
        is_live=engine.is_live,
        num_running=engine.num_running,
        num_unnamed_tickets=engine.credit.num_unnamed,
        model=engine.facts.model,
    )


def from_explanation(explanation: Explanation) -> scheduler_pb2.SchedulerServiceExplainResponse:
    """The decision that would be made."""
    refusal = "UNSPECIFIED" if explanation.refusal is None else explanation.refusal.name
    return scheduler_pb2.SchedulerServiceExplainResponse(
        engine_id=explanation.engine_id,
        bucket_tokens=explanation.bucket,
        num_ahead=explanation.num_ahead,
        snapshot_age_us=round(explanation.snapshot_age_s * US),
        refusal=f"PLACE_REFUSAL_{refusal}",
    )


def from_waiting(report: ReportWaiting) -> engine_pb2.WatchRequest:
    """Waiting work by class; empty classes are left out."""
    waiting = [
        engine_pb2.WaitingWork(
            priority=f"PRIORITY_{priority.name}", num_sequences=sequences, num_tokens=tokens
        )
        for priority, (sequences, tokens) in report.waiting.items()
        if sequences
    ]
    return engine_pb2.WatchRequest(waiting=waiting, has_waiting=True)
