"""Engines beside each other divide the cores, whatever they compute with."""

import pytest

from services.supervisor import up
from services.supervisor.cores import BY_CALLER, thread_share
from services.supervisor.plan import documented_ports, plan


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.delenv(BY_CALLER, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


def test_each_engine_gets_its_part_and_a_single_one_chooses_itself():
    assert [thread_share(count) for count in (1, 2, 3, 16)] == [
        {},
        {"num_threads": 4},
        {"num_threads": 2},
        {"num_threads": 1},
    ]


def test_the_part_reaches_the_engines_of_a_mesh():
    shape = up._shape(up.UpOptions(engines=2), "model")
    told = {spec.name: "--num-threads=4" in spec.arguments for spec in plan(shape, documented_ports(shape))}
    assert [name for name, is_told in told.items() if is_told] == ["engine-0", "engine-1"]


def test_a_caller_that_divides_the_cores_is_not_overruled(monkeypatch):
    monkeypatch.setenv(BY_CALLER, "3")
    assert thread_share(2) == {}
