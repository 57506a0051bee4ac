"""Where the time went: one tree of spans over four services, and a receipt whose hops tell the truth."""

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pagemesh import Client, Receipt
from services.demo.span_receiver import ReceivedSpan, SpanReceiver
from services.demo.span_tree import roots_of, services_of
from tests.support.mesh import Mesh

ROUNDS = 5
DELAY_S = 0.2
SERVICES = {"pagemesh-gateway", "pagemesh-tokenizer", "pagemesh-scheduler", "pagemesh-engine"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[SpanReceiver]:
    with SpanReceiver() as running:
        yield running


@pytest.fixture(scope="module")
def mesh(receiver: SpanReceiver) -> Iterator[Mesh]:
    with Mesh(engines=1, settings={"*": {"otlp_endpoint": receiver.address}}) as running:
        yield running


@pytest.fixture(scope="module")
def client(mesh: Mesh) -> Iterator[Client]:
    with mesh.client() as made:
        for _ in range(3):  # channels, code and caches are warm
            ask(made)
        yield made


def ask(client: Client, max_tokens: int = 4) -> Receipt:
    return client.collect(
        "Where did the time go?", temperature=0, max_tokens=max_tokens, ignore_eos=True
    ).receipt


def hops_ms(receipts: list[Receipt]) -> dict[str, float]:
    """Median of each hop."""
    rows = [dataclasses.asdict(receipt.hops) for receipt in receipts]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def moved(base: dict[str, float], then: dict[str, float]) -> dict[str, float]:
    return {name: then[name] - base[name] for name in base}


@pytest.fixture(scope="module")
def base(client: Client) -> dict[str, float]:
    return hops_ms([ask(client) for _ in range(ROUNDS)])


@pytest.mark.parametrize(
    ("process", "hop"),
    [("tokenizer-0", "encode_ms"), ("scheduler-0", "queue_ms"), ("engine-0", "dispatch_ms")],
)
def test_a_delay_shows_in_its_own_hop_only(mesh: Mesh, client: Client, process: str, hop: str):
    def delayed() -> Receipt:
        mesh.freeze(process)
        threading.Timer(DELAY_S, mesh.thaw, [process]).start()
        return ask(client, max_tokens=2)

    pairs = [(ask(client, max_tokens=2), delayed()) for _ in range(ROUNDS)]
    plain, late = (hops_ms(list(column)) for column in zip(*pairs, strict=True))
    check_only(hop, moved(plain, late))


def test_a_slow_step_shows_in_prefill_then_in_decode(mesh: Mesh, client: Client, base: dict[str, float]):
    mesh.write_script({"step_ms": DELAY_S * 1000})
    try:
        one = hops_ms([ask(client, max_tokens=1) for _ in range(ROUNDS)])
        two = hops_ms([ask(client, max_tokens=2) for _ in range(ROUNDS)])
    finally:
        mesh.write_script({})
    check_only("prefill_ms", moved({**base, "decode_ms": 0.0}, one))
    check_only("decode_ms", moved(one, two))


def check_only(hop: str, by_ms: dict[str, float]) -> None:
    others = {name: round(value, 1) for name, value in by_ms.items() if name != hop and abs(value) >= 30}
    assert 0.8 * DELAY_S * 1000 <= by_ms[hop] <= 1.5 * DELAY_S * 1000, by_ms
    assert not others, f"{hop} was delayed, and so moved {others}"


def test_the_hops_sum_to_the_time_that_passed(client: Client):
    for _ in range(ROUNDS):
        receipt = ask(client, max_tokens=40)
        total_ms = sum(dataclasses.asdict(receipt.hops).values())
        assert 0.95 * receipt.elapsed_ms <= total_ms <= 1.01 * receipt.elapsed_ms, receipt


def test_the_hops_are_what_a_caller_waits(client: Client):
    begin_s = time.monotonic()
    receipt = ask(client, max_tokens=40)
    waited_ms = (time.monotonic() - begin_s) * 1000
    assert receipt.elapsed_ms <= waited_ms <= receipt.elapsed_ms + 100
    assert 0 < receipt.ttft_ms <= receipt.elapsed_ms


def test_one_request_is_one_tree_over_four_services(receiver: SpanReceiver, client: Client):
    receipt = ask(client)
    is_whole: Callable[[list[ReceivedSpan]], bool] = lambda found: (  # noqa: E731
        services_of(found) == SERVICES and len(roots_of(found)) == 1
    )
    spans = receiver.wait_for(receipt.trace_id, is_whole)
    assert is_whole(spans), [(span.service, span.name, span.parent_id) for span in spans]
    (root,) = roots_of(spans)
    assert (root.service, root.name) == ("pagemesh-gateway", "pagemesh.gateway.generate")
    assert root.duration_ms == pytest.approx(receipt.elapsed_ms, abs=25)
    names = {(span.service.removeprefix("pagemesh-"), span.name) for span in spans}
    assert names >= {
        ("gateway", "encode"),
        ("gateway", "place"),
        ("gateway", "run"),
        ("gateway", "deliver"),
        ("tokenizer", "encode"),
        ("scheduler", "queue"),
        ("engine", "prefill"),
        ("engine", "decode"),
    }
    by_id = {span.span_id: span for span in spans}
    for span in spans:
        parent = by_id.get(span.parent_id)
        assert parent is None or parent.start_ns <= span.start_ns <= span.end_ns <= root.end_ns + 5e6, span


def test_no_prompt_text_in_any_span(receiver: SpanReceiver, client: Client):
    receipt = ask(client)
    spans = receiver.wait_for(receipt.trace_id, lambda found: services_of(found) == SERVICES)
    values = [str(value) for span in spans for value in span.attributes.values()]
    assert values and not [value for value in values if "Where did" in value]


def test_preheat_ends_before_ready(mesh: Mesh):
    lines = mesh.logs("tokenizer-0")
    ready = next(index for index, line in enumerate(lines) if "READY" in line)
    assert any("preheat" in line for line in lines[:ready]), lines
