"""Enqueues, hellos and reports as they come over the wire."""

from typing import Any

import pytest

from pagemesh.v1 import engine_pb2, scheduler_pb2
from services.contract.errors import MeshError
from services.contract.priority import Priority
from services.scheduler import messages
from services.scheduler.core.commands import ReportWaiting
from services.scheduler.core.credit import Room
from tests.support.scheduler_mesh import MODEL, TENANT


def _enqueue(**fields: Any) -> scheduler_pb2.Enqueue:
    words = {"handle": 7, "model": MODEL, "tenant_key": TENANT, "num_prompt_tokens": 100, **fields}
    return scheduler_pb2.Enqueue(**words)


def test_what_was_admitted_was_accepted_whatever_its_gateway_knows_of_that_word() -> None:
    assert messages.to_request(_enqueue(was_admitted=True)).was_accepted
    assert messages.to_request(_enqueue(was_accepted=True)).was_accepted
    assert not messages.to_request(_enqueue()).was_accepted


def test_absent_fields_mean_their_defaults() -> None:
    request = messages.to_request(_enqueue())
    assert (request.priority, request.num_sequences) == (Priority.INTERACTIVE, 1)
    assert (request.time_left_s, request.queue_time_left_s, request.age_s) == (None, None, 0.0)


def test_times_are_microseconds_on_the_wire() -> None:
    request = messages.to_request(_enqueue(age_us=1_500_000, time_left_us=250_000, queue_time_left_us=1))
    assert (request.age_s, request.time_left_s, request.queue_time_left_s) == (1.5, 0.25, 1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", "m" * 257),
        ("tenant_key", b""),
        ("tenant_key", b"x" * 17),
        ("priority", 4),
        ("num_prompt_tokens", 0),
        ("head_block_hashes", b"x" * 17),
        ("avoid_engine_ids", ["e"] * 65),
    ],
)
def test_what_breaks_the_contract_is_named(field: str, value: Any) -> None:
    with pytest.raises(MeshError) as caught:
        messages.to_request(_enqueue(**{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["engine_id", "boot_id", "model", "block_size", "max_sequences"])
def test_an_engine_without_name_or_limits_is_refused(field: str) -> None:
    info = engine_pb2.EngineInfo(
        engine_id="e",
        boot_id="b",
        model=MODEL,
        block_size=16,
        max_model_len=1,
        max_pool_tokens=1,
        max_sequences=1,
    )
    assert messages.to_facts(info, "127.0.0.1:1").address == "127.0.0.1:1"
    info.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(MeshError):
        messages.to_facts(info, "127.0.0.1:1")


def test_a_reports_tickets_are_told_apart_by_outcome() -> None:
    report = engine_pb2.EngineReport(
        room=[engine_pb2.ClassRoom(priority=1, num_sequences=2, num_tokens=3)],
        tickets=[engine_pb2.TicketNews(number=number, outcome=number) for number in (1, 2, 3)],
    )
    taken = messages.to_report(report)
    assert (taken.admitted, taken.refused, taken.ended) == ((1,), (2,), (3,))
    assert taken.room == {Priority.REALTIME: Room(2, 3)}


def test_empty_classes_are_left_out_of_waiting_work() -> None:
    waiting = {Priority.REALTIME: (0, 0), Priority.INTERACTIVE: (0, 0), Priority.BATCH: (2, 30)}
    message = messages.from_waiting(ReportWaiting(MODEL, waiting))
    assert message.has_waiting
    assert [(each.priority, each.num_sequences, each.num_tokens) for each in message.waiting] == [(3, 2, 30)]
