"""Which engine takes a request now: the one function behind Place and Explain. It changes nothing."""

from collections.abc import Mapping

from services.scheduler.core.engines import Engine, is_reachable
from services.scheduler.core.fleet import ModelFleet
from services.scheduler.core.request import Request


def choose(
    request: Request, fleet: ModelFleet, unreachable: Mapping[str, str], may_use_avoided: bool
) -> Engine | None:
    """The preferred engine if it has credit, else the least loaded, one of the preferred fingerprint first.

    An engine to avoid is taken only where no other has credit and `may_use_avoided` says so. None: nobody
    has credit.
    """
    open_ids = fleet.open[request.priority]
    if not open_ids:
        return None

    def is_ready(engine: Engine) -> bool:
        has_credit = engine.facts.boot_id in open_ids and engine.covers(request)
        return has_credit and engine.can_hold(request) and is_reachable(engine, unreachable)

    avoided, fingerprint = request.avoid_engine_ids, request.preferred_fingerprint
    preferred = fleet.named(request.preferred_engine_id)
    if preferred is not None and request.preferred_engine_id not in avoided and is_ready(preferred):
        return preferred
    ready = (engine for engine in fleet.by_load() if is_ready(engine))
    if not avoided and not fingerprint:
        return next(ready, None)
    ranked = sorted(ready, key=lambda engine: _rank(engine, request))
    if not ranked or (ranked[0].facts.engine_id in avoided and not may_use_avoided):
        return None
    return ranked[0]


def _rank(engine: Engine, request: Request) -> tuple[bool, bool]:
    facts = engine.facts
    return (
        facts.engine_id in request.avoid_engine_ids,
        facts.fingerprint_hash != request.preferred_fingerprint,
    )
