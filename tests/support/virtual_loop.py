"""An event loop whose clock jumps to the next timer: hours take no time on any machine."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 1,000 s, so that a time mistaken for a duration is seen."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now_s


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self._loop.now_s += max(0.0, timeout)
        return ready


def run_virtually(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Like asyncio.run."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
