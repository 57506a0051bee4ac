"""Who goes first: class, then the least-served tenant, then age; and nobody starves."""

from services.contract.priority import Priority
from services.scheduler.core.limits import Limits
from tests.support.scheduler_mesh import Mesh, handles, placed, request, tenant


def _full(mesh: Mesh) -> None:
    """An engine without room."""
    mesh.engine("e", 0)


def test_a_request_for_which_an_engine_has_credit_leaves_at_once(mesh: Mesh) -> None:
    mesh.engine("e")
    answer = placed(mesh.enqueue(request(1)))[0]
    assert (answer.engine.engine_id, answer.queued_s, answer.reason.value) == ("e", 0.0, "none")
    assert [ticket.engine_boot_id for ticket in answer.tickets] == ["e-boot"]


def test_classes_go_in_order_whatever_their_age(mesh: Mesh) -> None:
    _full(mesh)
    mesh.enqueue(request(1, priority=Priority.BATCH, age_s=60))
    mesh.enqueue(request(2, priority=Priority.INTERACTIVE, age_s=30))
    mesh.enqueue(request(3, priority=Priority.REALTIME))
    assert handles(mesh.report("e", 1)) == [3]
    assert handles(mesh.report("e", 2)) == [2]
    assert handles(mesh.report("e", 3)) == [1]


def test_age_at_the_gateway_orders_one_tenant(mesh: Mesh) -> None:
    _full(mesh)
    mesh.enqueue(request(1), request(2, age_s=5))
    mesh.enqueue(request(3, age_s=9))
    assert handles(mesh.report("e", 1)) == [3]
    assert handles(mesh.report("e", 8)) == [2, 1]


def test_tenants_share_by_tokens_not_by_requests(mesh: Mesh) -> None:
    """A tenant of requests ten times as long gets a tenth of the requests."""
    _full(mesh)
    mesh.enqueue(*(request(n, tenant_key=tenant("long"), num_prompt_tokens=950) for n in range(100)))
    mesh.enqueue(*(request(100 + n, tenant_key=tenant("short"), num_prompt_tokens=50) for n in range(100)))
    mesh.after(1.0)
    served = {"long": 0, "short": 0}
    for _ in range(55):
        number = mesh.core.waiting(Priority.INTERACTIVE)[0]
        for handle in handles(mesh.report("e", 1, admitted=tuple(range(1, 300)), num_running=1)):
            served["long" if handle < 100 else "short"] += 1
        assert mesh.core.waiting(Priority.INTERACTIVE)[0] == number - 1
    assert served == {"long": 5, "short": 50}


def test_a_flood_of_one_tenant_delays_another_by_one_turn(mesh: Mesh) -> None:
    _full(mesh)
    mesh.enqueue(*(request(n, tenant_key=tenant("flood")) for n in range(500)))
    mesh.report("e", 1)
    mesh.enqueue(request(900, tenant_key=tenant("calm")))
    first = [handles(mesh.report("e", 1, admitted=tuple(range(600)), num_running=1)) for _ in range(2)]
    assert [900] in first


def test_idleness_earns_nothing(mesh: Mesh) -> None:
    """A tenant that comes late starts at the level of those being served, not far below it."""
    _full(mesh)
    mesh.enqueue(*(request(n, tenant_key=tenant("old")) for n in range(100)))
    for _ in range(50):
        mesh.report("e", 1, admitted=tuple(range(600)), num_running=1)
    mesh.enqueue(*(request(200 + n, tenant_key=tenant("new")) for n in range(50)))
    next_10 = [handles(mesh.report("e", 1, admitted=tuple(range(600)), num_running=1))[0] for _ in range(10)]
    assert sum(handle < 100 for handle in next_10) in (4, 5, 6)


def test_a_placement_that_came_to_nothing_costs_its_tenant_nothing(mesh: Mesh) -> None:
    _full(mesh)
    mesh.enqueue(*(request(n, tenant_key=tenant("a")) for n in range(2)))
    mesh.after(0.01)
    mesh.enqueue(*(request(10 + n, tenant_key=tenant("b")) for n in range(2)))
    first = handles(mesh.report("e", 1))[0]
    mesh.report("e", 0, refused=(1,))
    second = handles(mesh.report("e", 1))[0]
    assert first < 10 and second < 10


def test_batch_gets_its_share_while_higher_classes_never_pause() -> None:
    mesh = Mesh(Limits(lower_class_every=8))
    _full(mesh)
    mesh.enqueue(*(request(n, priority=Priority.BATCH) for n in range(100)))
    mesh.enqueue(*(request(1000 + n, priority=Priority.INTERACTIVE) for n in range(200)))
    mesh.enqueue(*(request(2000 + n, priority=Priority.REALTIME) for n in range(200)))
    order = []
    for _ in range(90):
        order += handles(mesh.report("e", 1, admitted=tuple(range(600)), num_running=1))
    gaps = (
        _longest_gap([handle < 1000 for handle in order]),
        _longest_gap([handle < 2000 for handle in order]),
    )
    assert gaps[0] <= 10 and gaps[1] <= 9, order
    assert sum(handle >= 2000 for handle in order) >= 70


def _longest_gap(hits: list[bool]) -> int:
    longest = gap = 0
    for is_hit in hits:
        gap = 0 if is_hit else gap + 1
        longest = max(longest, gap)
    return longest


def _room(higher: int, batch: int) -> dict[Priority, int]:
    return {Priority.REALTIME: higher, Priority.INTERACTIVE: higher, Priority.BATCH: batch}


def test_slots_that_batch_holds_are_room_for_higher_classes(mesh: Mesh) -> None:
    mesh.engine("e", _room(8, 0))
    assert len(handles(mesh.enqueue(*(request(n) for n in range(8))))) == 8


def test_after_its_turn_batch_is_left_a_share_of_the_slots() -> None:
    """Else the next interactive request would take the slot away before the first step."""
    mesh = Mesh(Limits(lower_class_every=2))
    mesh.engine("e", 0, max_sequences=4)
    mesh.enqueue(request(1, priority=Priority.BATCH))
    mesh.enqueue(*(request(10 + n) for n in range(9)))
    order = [handles(mesh.report("e", 1, admitted=tuple(range(9)), num_running=3)) for _ in range(3)]
    assert order == [[10], [11], [1]]
    assert handles(mesh.report("e", _room(1, 0), admitted=(3,), num_running=4)) == []
    mesh.now += 9.9
    assert handles(mesh.report("e", _room(1, 0), num_running=4)) == []
    assert handles(mesh.report("e", _room(3, 1), num_running=2)) == [12]
    mesh.now += 0.2
    assert handles(mesh.report("e", _room(1, 0), admitted=(4,), num_running=4)) == [13]


def test_a_long_request_is_not_starved_by_a_flood_of_short_ones(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_prompt_tokens=4000))
    mesh.enqueue(*(request(10 + n, num_prompt_tokens=100) for n in range(100)))
    mesh.after(0.1)
    early = mesh.report("e", 4, tokens=1000, num_running=4)
    assert 1 not in handles(early) and len(handles(early)) == 4
    mesh.after(0.2)
    assert handles(mesh.report("e", 4, tokens=1000, num_running=4, admitted=tuple(range(9)))) == []
    assert handles(mesh.enqueue(request(500, num_prompt_tokens=16))) == []
    assert 1 in handles(mesh.report("e", 4, tokens=4096, num_running=1))


def test_room_held_for_one_class_is_open_to_higher_ones(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_prompt_tokens=4000))
    mesh.after(0.3)
    mesh.report("e", 4, tokens=1000, num_running=4)
    assert handles(mesh.enqueue(request(2), request(3, priority=Priority.REALTIME))) == [3]


def test_room_is_open_again_when_the_one_it_was_held_for_leaves(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_prompt_tokens=4000))
    mesh.after(0.3)
    mesh.enqueue(request(2))
    assert handles(mesh.report("e", 4, tokens=1000, num_running=4)) == []
    assert handles(mesh.withdraw(1)) == [2]


def test_a_prompt_over_the_reserve_goes_to_an_empty_engine(mesh: Mesh) -> None:
    mesh.engine("e", 0)
    mesh.enqueue(request(1, num_prompt_tokens=8000, max_output_tokens=100))
    assert handles(mesh.report("e", 8, tokens=7300, num_running=1)) == []
    assert handles(mesh.report("e", 8, tokens=7300, num_running=0)) == [1]


def test_a_batch_brings_one_length_bucket_together(mesh: Mesh) -> None:
    _full(mesh)
    for number, length in enumerate((100, 900, 110, 910, 120, 920)):
        mesh.enqueue(request(number, num_prompt_tokens=length))
    assert handles(mesh.report("e", 6)) == [0, 2, 4, 1, 3, 5]


def test_who_waited_long_is_not_overtaken_for_its_length(mesh: Mesh) -> None:
    _full(mesh)
    for number, length in enumerate((100, 900, 110, 910)):
        mesh.enqueue(request(number, num_prompt_tokens=length))
    mesh.after(0.3)
    assert handles(mesh.report("e", 4)) == [0, 1, 2, 3]


def test_a_batch_is_bounded_by_sequences_and_tokens() -> None:
    mesh = Mesh(Limits(max_batch_size=3, max_batch_tokens=450))
    mesh.engine("e", 0)
    mesh.enqueue(*(request(n, num_prompt_tokens=100) for n in range(4)), request(4, num_prompt_tokens=400))
    batches: dict[int, list[int]] = {}
    for answer in placed(mesh.report("e", 8)):
        assert len(answer.tickets) == 1
        batches.setdefault(answer.tickets[0].batch_id, []).append(answer.request.handle)
        assert answer.tickets[0].batch_size <= 3
    assert sorted(batches.values()) == [[0, 1, 2], [3], [4]]


def test_each_engine_gets_its_own_batch(mesh: Mesh) -> None:
    mesh.engine("e1", 4)
    mesh.engine("e2", 4)
    answers = placed(mesh.enqueue(*(request(n) for n in range(4))))
    engines = {answer.tickets[0].batch_id: answer.engine.engine_id for answer in answers}
    assert sorted(engines.values()) == ["e1", "e2"]
    assert {answer.tickets[0].batch_size for answer in answers} == {2}
