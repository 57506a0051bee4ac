"""Delays double, stay bounded and differ between peers."""

import random

from services.chassis.backoff import Backoff


def test_delays_double_up_to_the_bound_and_start_again() -> None:
    backoff = Backoff(random.Random(1), initial_s=0.1, max_s=1.0)
    bounds = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for bound_s in bounds:
        assert bound_s / 2 <= backoff.next_delay_s() <= bound_s
    backoff.reset()
    assert backoff.next_delay_s() <= 0.1


def test_peers_do_not_come_back_together() -> None:
    delays = {Backoff(random.Random(seed)).next_delay_s() for seed in range(20)}
    assert len(delays) == 20
