"""What has to hold before a process takes work: named checks, and a state per served model.

It knows no transport; `health` answers probes from it.
"""

import asyncio
import logging

logger = logging.getLogger(__name__)


class Readiness:
    """Ready when there is at least one check, all of them hold, and the process is not draining."""

    def __init__(self) -> None:
        self._checks: dict[str, bool] = {}
        self._models: dict[str, bool] = {}
        self._is_draining = False
        self._changed = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return bool(self._checks) and all(self._checks.values()) and not self._is_draining

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def unmet(self) -> tuple[str, ...]:
        """Names of the checks that do not hold."""
        return tuple(name for name, is_ok in self._checks.items() if not is_ok)

    def set(self, check: str, ok: bool) -> None:
        """States a check; the first time declares it. Declare all before the server runs."""
        if self._checks.get(check) is not ok:
            was_ready = self.is_ready
            self._checks[check] = ok
            self._publish()
            if self.is_ready != was_ready:
                logger.info("readiness", extra={"ready": self.is_ready, "unmet": ",".join(self.unmet)})

    def set_model(self, name: str, ok: bool) -> None:
        """States whether a model is served; the process's own readiness does not depend on it."""
        if self._models.get(name) is not ok:
            self._models[name] = ok
            self._publish()

    def model(self, name: str) -> bool | None:
        """None for a model that was never stated."""
        is_ok = self._models.get(name)
        return is_ok if is_ok is None else is_ok and not self._is_draining

    def drain(self) -> None:
        """Not ready from now on, whatever the checks say."""
        self._is_draining = True
        self._publish()

    async def changed(self) -> None:
        """Waits for the next change."""
        await self._changed.wait()

    async def wait_ready(self) -> None:
        """Waits until it is ready."""
        while not self.is_ready:
            await self.changed()

    def _publish(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
