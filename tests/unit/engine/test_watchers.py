"""When schedulers hear of the room."""

import asyncio
from typing import Any, cast

from pagemesh.v1 import engine_pb2
from services.engine.core.admission import Ticket
from services.engine.watchers import QUIET_EVERY_S, REPORT_EVERY_S, Watchers
from tests.support.engine_driver import BOOT
from tests.unit.engine.conftest import MakeDriver


class Stream:
    """Keeps what is sent."""

    is_open = True

    def __init__(self) -> None:
        self.reports: list[engine_pb2.EngineReport] = []

    def send(self, message: engine_pb2.WatchResponse) -> None:
        self.reports.append(message.report)


async def test_a_step_that_only_took_blocks_is_told_later_than_one_that_ended_a_sequence(
    make_driver: MakeDriver,
) -> None:
    driver, stream = make_driver(max_sequences=2), Stream()
    watchers = Watchers(driver.set, lambda: 0.0)
    number = watchers.open(cast(Any, stream))
    watchers.take(number, engine_pb2.WatchRequest(hello=engine_pb2.WatchHello(boot_id="s")))
    driver.admit(list(range(15)), 8, ticket=Ticket("s", 1, BOOT, 1, 1))
    driver.step()
    watchers.report_now()
    assert stream.reports[-1].num_running == 1
    for _ in range(3):
        driver.step()  # the second block is begun
        watchers.note_step()
    assert REPORT_EVERY_S < _seconds_left(watchers) <= QUIET_EVERY_S
    driver.drain()
    watchers.note_step()
    assert _seconds_left(watchers) <= REPORT_EVERY_S
    watchers.report_now()
    assert stream.reports[-1].num_running == 0 and [met.number for met in stream.reports[-1].tickets] == [1]
    watchers.close(number)


def _seconds_left(watchers: Watchers) -> float:
    assert watchers._timer is not None
    return watchers._timer.when() - asyncio.get_running_loop().time()
