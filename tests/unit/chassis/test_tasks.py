"""No task is forgotten, no failure silent."""

import asyncio
from typing import Any

import pytest

from services.chassis.tasks import Tasks


async def _fail() -> None:
    raise ValueError("boom")


async def _forever() -> None:
    await asyncio.Event().wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_critical_failure_is_logged_once_and_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []
    tasks = Tasks(codes.append)
    tasks.spawn(_fail(), "loop", critical=True)
    await _settle()
    assert codes == [1]
    assert [(record.message, vars(record)["task"]) for record in caplog.records] == [("task failed", "loop")]


async def test_critical_task_cancelled_by_others_ends_the_process() -> None:
    codes: list[int] = []
    task = Tasks(codes.append).spawn(_forever(), "loop", critical=True)
    await _settle()
    task.cancel()
    await _settle()
    assert codes == [1]


async def test_other_failures_are_logged_and_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []
    tasks = Tasks(codes.append)
    tasks.spawn(_fail(), "side")
    await _settle()
    assert codes == [] and len(tasks) == 0 and len(caplog.records) == 1


async def test_close_cancels_and_awaits_all() -> None:
    codes: list[int] = []
    cleaned: list[str] = []

    async def work(name: str) -> None:
        try:
            await _forever()
        finally:
            await asyncio.sleep(0)
            cleaned.append(name)

    tasks = Tasks(codes.append)
    for name in ("a", "b"):
        tasks.spawn(work(name), name, critical=True)
    await _settle()
    await tasks.close()
    assert sorted(cleaned) == ["a", "b"] and codes == [] and len(tasks) == 0


async def test_finished_critical_task_is_no_failure() -> None:
    codes: list[int] = []
    tasks = Tasks(codes.append)

    async def work() -> int:
        return 3

    assert await tasks.spawn(work(), "once", critical=True) == 3
    await _settle()
    assert codes == []


async def test_spawn_after_close_is_a_bug() -> None:
    tasks = Tasks()
    await tasks.close()
    coro: Any = _forever()
    with pytest.raises(AssertionError):
        tasks.spawn(coro, "late")
    coro.close()
