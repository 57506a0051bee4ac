"""Events that wait are merged per choice, in order, within a bound; numbers have no gap."""

from services.gateway.life.outbox import MAX_IDS_PER_EVENT, Outbox
from services.gateway.life.request_words import ChoiceLogprobs, EmitTokens


def tokens(choice: int, first: int, ids: list[int], text: str, with_logprobs: bool = False) -> EmitTokens:
    columns = [ChoiceLogprobs((i,), (0.0,)) for i in ids] if with_logprobs else None
    return EmitTokens(choice, first, ids, text, columns)


def test_waiting_tokens_become_one_event_per_choice() -> None:
    outbox = Outbox()
    outbox.add(tokens(0, 0, [1], "a", with_logprobs=True))
    outbox.add(tokens(1, 0, [9], "x"))
    outbox.add(tokens(0, 1, [2, 3], "bc", with_logprobs=True))
    first, second = outbox.take(), outbox.take()
    assert first is not None and second is not None and outbox.take() is None
    assert (first.choice, first.first_index, first.ids, first.text) == (0, 0, [1, 2, 3], "abc")
    assert first.logprobs is not None and [column.ids for column in first.logprobs] == [(1,), (2,), (3,)]
    assert (second.choice, second.ids) == (1, [9])


def test_a_taken_event_is_not_added_to() -> None:
    outbox = Outbox()
    outbox.add(tokens(0, 0, [1], "a"))
    taken = outbox.take()
    outbox.add(tokens(0, 1, [2], "b"))
    assert taken is not None and taken.ids == [1]
    rest = outbox.take()
    assert rest is not None and (rest.first_index, rest.ids) == (1, [2])


def test_an_event_has_a_bounded_number_of_ids() -> None:
    outbox = Outbox()
    for index in range(0, 3 * MAX_IDS_PER_EVENT, 512):
        outbox.add(tokens(0, index, list(range(index, index + 512)), ""))
    taken: list[int] = []
    while (event := outbox.take()) is not None:
        assert len(event.ids) <= MAX_IDS_PER_EVENT and event.first_index == len(taken)
        taken += event.ids
    assert taken == list(range(3 * MAX_IDS_PER_EVENT))


def test_numbers_go_on_where_a_resume_says() -> None:
    outbox = Outbox(7)
    assert [outbox.number() for _ in range(3)] == [7, 8, 9]
