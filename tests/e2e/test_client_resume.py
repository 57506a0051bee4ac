"""A gateway dies under a stream; the client goes on at the other: same ids, same text, no gap, no repeat."""

import random
from collections.abc import Iterator

import pytest

from pagemesh import Answer, Client, Complete, Resumed, TokenChunk, collect
from tests.support.mesh import Mesh

NUM_TOKENS = 40
PROMPT = "Tell me of the sea."
OPTIONS = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "n": 2, "seed": 5, "temperature": 0.9}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(engines=1, gateways=2, script={"step_ms": 10}) as running:
        yield running


@pytest.fixture
def client(mesh: Mesh) -> Iterator[Client]:
    """Prefers gateway-0."""
    with mesh.client() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(mesh: Mesh) -> Answer:
    with mesh.client() as client:
        return client.collect(PROMPT, **OPTIONS)


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_gateway_costs_nothing(mesh: Mesh, client: Client, undisturbed: Answer, seed: int):
    kill_at = random.Random(seed).randrange(1, 2 * NUM_TOKENS - 2)
    events, num_chunks = [], 0
    for event in client.generate(PROMPT, **OPTIONS):
        events.append(event)
        if isinstance(event, TokenChunk):
            num_chunks += 1
            if num_chunks == kill_at:
                mesh.kill("gateway-0")
    mesh.restart("gateway-0")
    assert [event.seq_id for event in events] == list(range(len(events)))
    (resumed,) = [event for event in events if isinstance(event, Resumed)]
    assert resumed.address == mesh.address("gateway-1")
    answer = collect(events)
    assert [choice.ids for choice in answer.choices] == [choice.ids for choice in undisturbed.choices]
    assert [choice.text for choice in answer.choices] == [choice.text for choice in undisturbed.choices]
    assert answer.usage.completion_tokens == 2 * NUM_TOKENS


def test_a_gateway_that_dies_before_the_answer_begins(mesh: Mesh, undisturbed: Answer):
    with mesh.client() as client:
        client.list_models()
        mesh.kill("gateway-0")
        try:
            answer = client.collect(PROMPT, **OPTIONS)
        finally:
            mesh.restart("gateway-0")
    assert [choice.ids for choice in answer.choices] == [choice.ids for choice in undisturbed.choices]


def test_a_lone_gateway_is_waited_for(mesh: Mesh, undisturbed: Answer):
    """With one address the stream goes on there once the gateway is back."""
    events = []
    with Client(mesh.address("gateway-0")) as client:
        for event in client.generate(PROMPT, **OPTIONS):
            events.append(event)
            if len(events) == 20:
                mesh.restart("gateway-0")
    assert isinstance(events[-1], Complete)
    assert [choice.ids for choice in collect(events).choices] == [
        choice.ids for choice in undisturbed.choices
    ]


def test_the_engine_is_idle_afterwards(mesh: Mesh):
    mesh.wait_until(lambda: mesh.metrics("engine-0").total("pagemesh_engine_running_sequences") == 0)
    assert mesh.metrics("engine-0").value("pagemesh_engine_kv_blocks", state="used") == 0
