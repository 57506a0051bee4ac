"""The event loop's heartbeat: says when something held the loop, which no probe can answer for itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

BEAT_S = 0.5
OVERDUE_S = 2.0

logger = logging.getLogger(__name__)


async def watch_loop(
    clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Logs every time the loop came round OVERDUE_S or more later than it should. Runs until cancelled."""
    while True:
        due_s = clock() + BEAT_S
        await sleep(BEAT_S)
        late_s = clock() - due_s
        if late_s >= OVERDUE_S:
            logger.warning("event loop stood still", extra={"late_s": round(late_s, 1)})
