"""What the placement core is allowed: sizes and times, given once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults are the settings' defaults."""

    max_batch_size: int = 32
    """Sequences of one dispatch batch."""
    max_batch_tokens: int = 2048
    """Known ids of one dispatch batch; a single request may be longer."""
    max_wait_s: float = 0.25
    """A request without credit that waited so long is not overtaken within its class any more."""
    max_queued_sequences: int = 10_000
    """Waiting sequences, for each class by itself: no class fills the queue for another."""
    max_queued_tokens: int = 20_000_000
    """Their known ids, for each class by itself."""
    no_engine_wait_s: float = 10.0
    """How long a request waits for an engine that its gateway reaches and that could hold it."""
    ticket_wait_s: float = 2.0
    """A ticket that is not named within it is given up."""
    lower_class_every: int = 8
    """Of so many placements one goes to a lower class that waits; of so many slots it then keeps one."""
    avoid_backoff_s: float = 0.5
    """Before an engine to avoid is tried again; doubles with each crash."""
