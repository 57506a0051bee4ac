"""A request's counters over all choices and attempts, for its receipt. Pure bookkeeping."""

from dataclasses import dataclass, field

from services.gateway.life.request_words import Counts, EngineFacts, Tier


@dataclass(slots=True)
class Account:
    """Sums; each method is one thing that happened."""

    num_cached: int = 0
    num_computed: int = 0
    num_recomputed: int = 0
    num_discarded: int = 0
    num_preemptions: int = 0
    num_moves: int = 0
    num_stale: int = 0
    queue_reason: str = "none"
    engine: EngineFacts | None = None
    tier: Tier = Tier.UNSPECIFIED
    _has_cached: bool = field(default=False)

    def placed(self, queue_reason: str) -> None:
        """Keeps the first reason that is one."""
        if self.queue_reason == "none" and queue_reason:
            self.queue_reason = queue_reason

    def moved(self) -> None:
        """A choice goes on in another engine or process."""
        self.num_moves += 1
        if self.queue_reason == "none":
            self.queue_reason = "moved"

    def computing_at(self, engine: EngineFacts, has_changed_fingerprint: bool) -> None:
        """The first token of an admission came from this engine."""
        self.engine = engine
        tier = Tier.CONTINUED if has_changed_fingerprint else engine.tier
        self.tier = max(self.tier, tier)

    def under_way(self, choice: int, num_cached: int, num_rows_before: int) -> None:
        """An admission has its first token; num_rows_before were computed for this choice before it."""
        if choice == 0 and not self._has_cached:
            self._has_cached, self.num_cached = True, num_cached
        self.num_recomputed += max(0, num_rows_before - num_cached)

    def settled(self, counts: Counts) -> None:
        """The engine's own account of an admission."""
        self.num_computed += counts.num_computed
        self.num_recomputed += counts.num_recomputed
        self.num_preemptions += counts.num_preemptions

    def lost(self, num_rows: int) -> None:
        """An admission died without an account; num_rows is what its tokens prove."""
        self.num_computed += num_rows
