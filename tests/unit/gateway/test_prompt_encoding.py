"""What is asked of the tokenizer, and what lengths decide without it."""

import pytest

from services.contract.errors import MeshError, Reason
from services.gateway.prompt_encoding import (
    check_text_size,
    check_turn_truncation,
    check_whole_conversation,
    continue_history,
    encode_request,
    prompt_limit,
    truncate_ids,
)
from services.gateway.spec.generation_spec import (
    ConversationPrompt,
    GenerationSpec,
    MessagesPrompt,
    Prompt,
    Role,
    Segment,
    SessionTurn,
    TextPrompt,
    Truncation,
    TruncationSide,
)

TEXT = TextPrompt("x" * 100)


def spec(**fields: object) -> GenerationSpec:
    return GenerationSpec(**{"prompt": TEXT, **fields})  # type: ignore[arg-type]


def test_a_turn_asks_with_the_tail_of_its_history() -> None:
    request = encode_request(ConversationPrompt((Segment(Role.USER, "hi", 2.0),)))
    continue_history(request, list(range(40)))
    assert list(request.continuation.tail_ids) == list(range(24, 40))
    assert request.conversation.segments[0].content == "hi"


@pytest.mark.parametrize(
    ("side", "prefix", "kept"),
    [
        (TruncationSide.LEFT, (), (7, 8, 9)),
        (TruncationSide.RIGHT, (), (0, 1, 2)),
        (TruncationSide.LEFT, (0,), (0, 8, 9)),
        (TruncationSide.LEFT, (5,), (7, 8, 9)),
    ],
)
def test_given_ids_are_cut_on_the_right_side_and_keep_what_stands_in_front(
    side: TruncationSide, prefix: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert truncate_ids(range(10), side, 3, prefix) == kept
    assert truncate_ids(range(3), side, 3, prefix) == (0, 1, 2)


def test_a_truncated_prompt_leaves_room_for_the_output() -> None:
    assert prompt_limit(spec(max_tokens=30), 100, 512) == 70
    assert prompt_limit(spec(), 100, 512) == 50
    assert prompt_limit(spec(max_tokens=30, truncation=Truncation(max_prompt_tokens=10)), 100, 512) == 10
    with pytest.raises(MeshError) as caught:
        prompt_limit(spec(max_tokens=100), 100, 512)
    assert caught.value.reason is Reason.TOO_LONG


def test_text_that_cannot_fit_is_refused_before_it_is_encoded_unless_it_may_be_cut() -> None:
    check_text_size(TEXT, spec(), 10, 10)
    with pytest.raises(MeshError) as caught:
        check_text_size(TEXT, spec(), 9, 11)
    assert caught.value.reason is Reason.TOO_LONG and "x" * 10 not in caught.value.message
    check_text_size(TEXT, spec(truncation=Truncation(TruncationSide.LEFT)), 9, 11)


def test_a_history_is_not_cut() -> None:
    turn = SessionTurn("s", "u")
    check_turn_truncation(spec(session=turn))
    with pytest.raises(MeshError):
        check_turn_truncation(spec(session=turn, truncation=Truncation(TruncationSide.LEFT)))


QUESTION, REPLY = Segment(Role.USER, "q"), Segment(Role.ASSISTANT, "a")
TURN = SessionTurn("s", "u", 1)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (ConversationPrompt((QUESTION,)), "conversation.segments"),
        (ConversationPrompt((Segment(Role.SYSTEM, "s"), QUESTION)), "conversation.segments"),
        (MessagesPrompt('[{"role": "user", "content": "assistant"}]'), "messages_json"),
    ],
)
def test_a_turn_that_cannot_be_the_whole_conversation_is_refused_where_that_is_needed(
    prompt: Prompt, field: str
) -> None:
    with pytest.raises(MeshError) as caught:
        check_whole_conversation(prompt, spec(prompt=prompt, session=TURN))
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_FIELD, field)
    assert "whole conversation" in caught.value.message


@pytest.mark.parametrize(
    "prompt",
    [
        ConversationPrompt((QUESTION, REPLY, QUESTION)),
        MessagesPrompt('[{"role": "user"}, {"role": "assistant"}, {"role": "user"}]'),
        MessagesPrompt("no JSON: the tokenizer says so"),
        MessagesPrompt('{"the tokenizer": "says so"}'),
        MessagesPrompt("[" * 100_000),
    ],
)
def test_a_whole_conversation_or_one_the_tokenizer_will_refuse_passes(prompt: Prompt) -> None:
    check_whole_conversation(prompt, spec(prompt=prompt, session=TURN))


def test_nothing_of_an_answer_is_kept_by_number_where_the_caller_sends_it() -> None:
    prompt = ConversationPrompt((QUESTION, REPLY, QUESTION))
    with pytest.raises(MeshError) as caught:
        check_whole_conversation(prompt, spec(prompt=prompt, session=SessionTurn("s", "u", 1, 0)))
    assert caught.value.field == "session.keep_output_tokens"
