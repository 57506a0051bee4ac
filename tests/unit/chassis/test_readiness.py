"""Readiness tells the truth."""

import asyncio

from services.chassis.readiness import Readiness


def test_no_check_is_not_ready() -> None:
    assert not Readiness().is_ready


def test_every_check_has_to_hold() -> None:
    readiness = Readiness()
    readiness.set("listening", True)
    readiness.set("model", False)
    assert not readiness.is_ready and readiness.unmet == ("model",)
    readiness.set("model", True)
    assert readiness.is_ready
    readiness.set("model", False)
    assert not readiness.is_ready


def test_draining_is_for_good() -> None:
    readiness = Readiness()
    readiness.set("listening", True)
    readiness.set_model("m", True)
    readiness.drain()
    readiness.set("other", True)
    assert not readiness.is_ready and readiness.model("m") is False


async def test_waiters_see_each_change() -> None:
    readiness = Readiness()
    waiter = asyncio.ensure_future(readiness.wait_ready())
    await asyncio.sleep(0)
    readiness.set("a", False)
    await asyncio.sleep(0)
    assert not waiter.done()
    readiness.set("a", True)
    async with asyncio.timeout(1):
        await waiter
