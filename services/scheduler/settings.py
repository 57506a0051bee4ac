"""What a scheduler process can be told."""

from typing import ClassVar

from pydantic import Field, field_validator

from services.chassis.address import split_address
from services.chassis.settings import ServiceSettings
from services.scheduler.core.limits import Limits


class SchedulerSettings(ServiceSettings):
    """Settings of the scheduler service."""

    service: ClassVar[str] = "scheduler"

    listen: str = Field("127.0.0.1:7620", description="host:port to serve gRPC on; port 0 takes a free one")
    engines: tuple[str, ...] = Field(
        ("127.0.0.1:7630",), description="host:port of the engines; a name stands for all its addresses"
    )
    resolve_every_s: float = Field(5.0, gt=0, description="Seconds between look-ups of the engines' names")
    max_batch_size: int = Field(32, ge=1, description="Sequences of one dispatch batch at most")
    max_batch_tokens: int = Field(
        2048, ge=1, description="Known tokens of one dispatch batch at most; a single request may be longer"
    )
    max_wait_s: float = Field(
        0.25, ge=0, description="Seconds without room after which a request is not overtaken within its class"
    )
    max_queued_sequences: int = Field(10_000, ge=1, description="Waiting sequences of one class at most")
    max_queued_tokens: int = Field(20_000_000, ge=1, description="Their known tokens at most")
    no_engine_wait_s: float = Field(
        10.0, ge=0, description="Seconds that a request waits for an engine that could take it"
    )
    ticket_wait_s: float = Field(
        2.0, gt=0, description="Seconds after which a ticket that its engine did not name is given up"
    )
    lower_class_every: int = Field(
        8,
        ge=2,
        description="Of so many placements one goes to a lower class that waits, so that none starves",
    )
    avoid_backoff_s: float = Field(
        0.5, ge=0, description="Seconds before an engine to avoid is tried again; doubles with each crash"
    )

    @field_validator("engines")
    @classmethod
    def _check_engines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address)
        return value

    @property
    def limits(self) -> Limits:
        """The core's part."""
        return Limits(
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            max_wait_s=self.max_wait_s,
            max_queued_sequences=self.max_queued_sequences,
            max_queued_tokens=self.max_queued_tokens,
            no_engine_wait_s=self.no_engine_wait_s,
            ticket_wait_s=self.ticket_wait_s,
            lower_class_every=self.lower_class_every,
            avoid_backoff_s=self.avoid_backoff_s,
        )
