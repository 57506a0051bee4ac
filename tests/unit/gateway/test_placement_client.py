"""Which scheduler an enqueue goes to."""

from typing import Any, cast

from pagemesh.v1 import scheduler_pb2
from services.gateway.life.request_words import Placement, PlaceRefusal
from services.gateway.peers.placement_client import PlacementClient
from services.gateway.peers.scheduler_link import SchedulerLink, Waiting


class Stream:
    """Keeps what is sent."""

    is_open = True

    def __init__(self) -> None:
        self.enqueued: list[int] = []

    def send(self, message: scheduler_pb2.PlaceRequest) -> None:
        self.enqueued += [enqueue.handle for enqueue in message.enqueue]


class Owner:
    """Asks again as soon as it is refused."""

    def __init__(self, client: PlacementClient) -> None:
        self.client = client
        self.refusals: list[PlaceRefusal] = []
        self.queued_ids: list[int] = []

    def ask(self) -> None:
        self.client.enqueue(Waiting(self, "m", 1, lambda handle: scheduler_pb2.Enqueue(handle=handle)))

    def placed(self, place_id: int, placement: Placement) -> None: ...
    def queued(self, place_id: int) -> None:
        self.queued_ids.append(place_id)

    def place_broken(self, place_id: int) -> None: ...
    def serving(self, is_served: bool) -> None: ...

    def place_refused(self, place_id: int, refusal: PlaceRefusal, retry_delay_s: float | None) -> None:
        self.refusals.append(refusal)
        self.ask()


def refused(handle: int, refusal: scheduler_pb2.PlaceRefusal) -> scheduler_pb2.PlaceResponse:
    return scheduler_pb2.PlaceResponse(refused=[scheduler_pb2.Refused(handle=handle, refusal=refusal)])


async def test_a_draining_scheduler_is_asked_again_only_while_there_is_no_other() -> None:
    client = PlacementClient(scheduler_pb2.PlaceHello(), list, lambda: 0.0, 1.0)
    links = [SchedulerLink(name, client, cast(Any, None)) for name in ("a", "b")]
    streams = [Stream(), Stream()]
    client._links += links
    for link, stream in zip(links, streams, strict=True):
        link._stream = cast(Any, stream)
    owner = Owner(client)
    owner.ask()
    links[0]._receive(refused(1, scheduler_pb2.PLACE_REFUSAL_DRAINING))
    assert owner.refusals == [PlaceRefusal.DRAINING]
    assert (streams[0].enqueued, streams[1].enqueued) == ([1], [1])
    owner.ask()  # the other is the more loaded one now
    assert (streams[0].enqueued, streams[1].enqueued) == ([1], [1, 2])
    streams[1].is_open = False
    owner.ask()
    assert streams[0].enqueued == [1, 2]


async def test_its_owner_hears_that_an_enqueue_was_taken_into_the_queue() -> None:
    client = PlacementClient(scheduler_pb2.PlaceHello(), list, lambda: 0.0, 1.0)
    link = SchedulerLink("a", client, cast(Any, None))
    link._stream = cast(Any, Stream())
    client._links.append(link)
    owner = Owner(client)
    owner.ask()
    news = [scheduler_pb2.QueueNews(handle=handle, num_ahead=3) for handle in (1, 9)]
    link._receive(scheduler_pb2.PlaceResponse(queue_news=news))
    assert owner.queued_ids == [1]
