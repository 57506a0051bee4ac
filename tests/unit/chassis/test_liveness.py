"""A held event loop leaves a line."""

import asyncio

import pytest

from services.chassis.liveness import watch_loop


async def test_a_held_loop_is_logged_and_a_busy_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    naps = iter([0.5, 1.0, 2.4, 3.5])

    async def sleep(_: float) -> None:
        nonlocal now_s
        nap_s = next(naps, None)
        if nap_s is None:
            raise asyncio.CancelledError
        now_s += nap_s

    with pytest.raises(asyncio.CancelledError):
        await watch_loop(lambda: now_s, sleep)
    assert [vars(record)["late_s"] for record in caplog.records] == [3.0]
