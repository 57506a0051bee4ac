"""Supervised asyncio tasks: none is forgotten, no failure is silent, a critical one ends the process."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

EXIT_CRITICAL = 1

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def exit_process(code: int) -> None:
    """Ends the process at once, as a crash would: peers learn it from their sockets."""
    logging.shutdown()
    os._exit(code)


class Tasks:
    """Owns the tasks it spawns."""

    def __init__(self, exit_process: Callable[[int], None] = exit_process) -> None:
        self._exit_process = exit_process
        self._running: dict[asyncio.Task[Any], bool] = {}
        """Task -> is it critical."""
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(
        self, coro: Coroutine[Any, Any, Result], name: str, critical: bool = False
    ) -> asyncio.Task[Result]:
        """Starts a task. If critical, its failure or its cancellation by others ends the process."""
        assert not self._is_closing, f"spawn of {name} after close"
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._running[task] = critical
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancels all and waits until each has ended."""
        self._is_closing = True
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        is_critical = self._running.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error(
                "task failed", exc_info=error, extra={"task": task.get_name(), "critical": is_critical}
            )
        elif task.cancelled() and is_critical and not self._is_closing:
            logger.error("critical task was cancelled", extra={"task": task.get_name()})
        else:
            return
        if is_critical and not self._is_closing:
            self._exit_process(EXIT_CRITICAL)
