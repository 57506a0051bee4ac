"""A bucket of permits per tenant. The clock is passed in."""

from collections import OrderedDict
from collections.abc import Callable

from services.contract.errors import MeshError, Reason

MAX_TENANTS = 10_000


class RateLimit:
    """per_s calls a second, as many at once after a second of rest."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, tenant: str) -> None:
        """Raises MeshError QUOTA with the time until the next permit."""
        now = self._clock()
        permits, since_s = self._buckets.pop(tenant, (self._burst, now))
        permits = min(self._burst, permits + (now - since_s) * self._per_s)
        is_allowed = permits >= 1.0
        self._buckets[tenant] = (permits - 1.0 if is_allowed else permits), now
        if len(self._buckets) > MAX_TENANTS:
            self._buckets.popitem(last=False)
        if not is_allowed:
            message = f"at most {self._per_s:g} such calls per second"
            raise MeshError(Reason.QUOTA, message, retry_delay_s=(1.0 - permits) / self._per_s)
