"""Collects the running set's news until someone carries it out: per Run stream, and tickets met."""

from services.engine.core.admission import Admission
from services.engine.core.outcome import (
    Ended,
    EndReason,
    NewIds,
    Progress,
    Refusal,
    Refused,
    Returned,
    ReturnReason,
    StreamNews,
    TicketFate,
    TicketMet,
)
from services.engine.core.sequence import Sequence
from services.engine.step import RowOutput


class Newsroom:
    """News since the last take."""

    def __init__(self) -> None:
        self._streams: dict[int, StreamNews] = {}
        self._tickets: list[TicketMet] = []

    @property
    def has_tickets(self) -> bool:
        return bool(self._tickets)

    def take_streams(self) -> dict[int, StreamNews]:
        streams, self._streams = self._streams, {}
        return streams

    def take_tickets(self) -> list[TicketMet]:
        tickets, self._tickets = self._tickets, []
        return tickets

    def drop_stream(self, stream_id: int) -> None:
        """Nobody reads it any more."""
        self._streams.pop(stream_id, None)

    def refused(self, admission: Admission, refusal: Refusal, detail: str) -> None:
        self._of(admission).refused.append(Refused(admission.handle, refusal, detail))
        self.ticket(admission, TicketFate.REFUSED)

    def progress(self, sequence: Sequence, now_us: int) -> None:
        """The first token is there."""
        assert sequence.first_step_us is not None, sequence.sequence_id
        self._of(sequence.admission).progress.append(
            Progress(
                handle=sequence.admission.handle,
                num_cached_tokens=sequence.num_cached_tokens,
                wait_us=sequence.first_step_us - sequence.admitted_us,
                prefill_us=now_us - sequence.first_step_us,
            )
        )

    def new_ids(self, sequence: Sequence, first_index: int, output: RowOutput, num_taken: int) -> None:
        admission = sequence.admission
        logprobs = None if output.logprobs is None else output.logprobs[:num_taken]
        ids = output.ids[:num_taken]
        self._of(admission).new_ids.append(
            NewIds(admission.handle, admission.attempt.gateway, first_index, ids, logprobs)
        )

    def returned(self, sequence: Sequence, reason: ReturnReason) -> None:
        admission = sequence.admission
        self._of(admission).returned.append(Returned(admission.handle, reason, sequence.counts()))
        self.ticket(admission, TicketFate.ENDED)

    def ended(self, sequence: Sequence, reason: EndReason) -> None:
        admission = sequence.admission
        self._of(admission).ended.append(Ended(admission.handle, reason, sequence.counts()))
        self.ticket(admission, TicketFate.ENDED)

    def ticket(self, admission: Admission, fate: TicketFate) -> None:
        ticket = admission.ticket
        if ticket is not None:
            self._tickets.append(TicketMet(ticket.scheduler_boot_id, ticket.number, fate))

    def _of(self, admission: Admission) -> StreamNews:
        return self._streams.setdefault(admission.stream_id, StreamNews())
