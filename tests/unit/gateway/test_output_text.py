"""One choice's text and end: a pure function of its ids, however they arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.spec.generation_spec import FinishReason
from services.gateway.text.detokenizer import TokenTable
from services.gateway.text.output_text import Finish, OutputRules, OutputText

LENGTH = Finish(FinishReason.LENGTH)


def spell(vocabulary, *pieces):
    """Ids of the pieces, each encoded alone, so that the cuts between them are cuts between ids."""
    return [token_id for piece in pieces for token_id in vocabulary.library.encode(piece).ids]


def collect(output, ids, size=1):
    """Feeds ids in messages of a size; returns text, accepted and discarded counts, and the finish."""
    text, num_accepted, num_discarded, finish = "", 0, 0, None
    for start in range(0, len(ids), size):
        delta = output.push(ids[start : start + size])
        text += delta.text
        num_accepted += delta.num_accepted
        num_discarded += delta.num_discarded
        finish = finish or delta.finish
    return text, num_accepted, num_discarded, finish


@pytest.fixture
def special_id(any_text):
    return min(any_text.table.special_ids)


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_text_over_several_ids_ends_before_it(any_text, open_output, size, include_stop):
    ids = spell(any_text, "ABC", "DEF", "G", "HI", "JK", "L")
    output = open_output(stop_texts=("DEFGHIJ",), include_stop=include_stop)
    text, num_accepted, num_discarded, finish = collect(output, ids, size)
    assert text == ("ABCDEFGHIJ" if include_stop else "ABC")
    assert finish == Finish(FinishReason.STOP, stop_text="DEFGHIJ")
    through_stop = next(n for n in range(len(ids)) if "DEFGHIJ" in any_text.decode(ids[:n]))
    assert num_accepted == through_stop == output.num_tokens
    assert num_discarded == len(ids) - num_accepted


def test_a_stop_text_cut_out_of_the_middle_of_an_id(any_text, open_output):
    ids = spell(any_text, " theme", " then")
    text, _, _, finish = collect(open_output(stop_texts=("me t",)), ids)
    assert text == " the"
    assert finish == Finish(FinishReason.STOP, stop_text="me t")


def test_stop_text_in_the_prompt_never_matches(any_text, open_output):
    prompt, ids = spell(any_text, "say EN"), spell(any_text, "D and END")
    text, _, _, finish = collect(open_output(prompt, stop_texts=("END",)), ids)
    assert text == "D and "
    assert finish.stop_text == "END"


def test_stop_text_of_characters_made_of_several_ids(any_text, open_output):
    ids = spell(any_text, "ok 👩‍👩‍👧‍👦 我很高兴")
    text, _, _, finish = collect(open_output(stop_texts=("‍👧‍👦 我",)), ids)
    assert text == "ok 👩‍👩"
    assert finish.stop_text == "‍👧‍👦 我"


def test_held_back_text_is_flushed_by_the_length(any_text, open_output):
    ids = spell(any_text, "a <en")
    output = open_output(stop_texts=("<end>",), max_tokens=len(ids))
    last = [output.push([token_id]) for token_id in ids][-1]
    assert last.finish == LENGTH
    assert last.text.endswith("<en")


def test_held_back_text_is_flushed_by_a_stop_id(any_text, open_output, special_id):
    output = open_output(stop_texts=("<end>",), stop_ids=frozenset([special_id]))
    text, _, _, finish = collect(output, [*spell(any_text, "a <en"), special_id])
    assert text == "a <en"
    assert finish == Finish(FinishReason.STOP, stop_id=special_id)


def test_held_back_text_is_the_final_text_when_the_run_time_ends(any_text, open_output):
    output = open_output(stop_texts=("<end>",))
    text, *_ = collect(output, spell(any_text, "a <en"))
    assert text + output.finish_run_time() == "a <en"
    assert output.finish == Finish(FinishReason.RUN_TIME)
    assert output.push([1, 2]).num_discarded == 2


@pytest.mark.parametrize("max_tokens", [1, 2, 50])
@pytest.mark.parametrize("size", [1, 5, 60])
def test_the_message_that_ends_it_keeps_its_ids(any_text, open_output, max_tokens, size):
    ids = spell(any_text, *(["ABC DEF "] * 60))[:60]
    output = open_output(max_tokens=max_tokens)
    text, num_accepted, num_discarded, finish = collect(output, ids, size)
    assert (num_accepted, num_discarded, finish) == (max_tokens, 60 - max_tokens, LENGTH)
    assert text == any_text.decode(ids[:max_tokens])


def test_an_unfinished_character_at_the_end_is_one_replacement(any_text, open_output):
    ids = spell(any_text, "我")[:1] if any_text.name == "byte_level" else spell(any_text, "👩")[:1]
    delta = open_output(max_tokens=1).push(ids)
    assert delta.text == any_text.decode(ids) == "\ufffd"


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_special_stop_id_counts_and_stays_hidden(any_text, open_output, special_id, include_stop):
    ids = [*spell(any_text, "abc"), special_id, *spell(any_text, "x")]
    output = open_output(stop_ids=frozenset([special_id]), include_stop=include_stop)
    text, num_accepted, num_discarded, _ = collect(output, ids, 50)
    assert text == "abc"
    assert num_discarded == len(spell(any_text, "x"))
    assert num_accepted == len(ids) - num_discarded


def test_special_ids_that_stop_nothing_are_hidden_or_shown_once(any_text, open_output, special_id):
    ids = [*spell(any_text, "a"), special_id, *spell(any_text, "b")]
    name = any_text.library.id_to_token(special_id)
    assert collect(open_output(), ids)[:2] == ("ab", len(ids))
    assert collect(open_output(skip_special_tokens=False), ids)[0] == f"a{name}b"


@pytest.mark.parametrize(("include_stop", "expected"), [(False, "A"), (True, "AC")])
def test_a_plain_stop_id_is_shown_only_if_asked(any_text, open_output, include_stop, expected):
    a, c = spell(any_text, "A", "C")
    output = open_output(stop_ids=frozenset([c]), include_stop=include_stop)
    assert collect(output, [a, c, a])[0] == expected
    assert output.finish == Finish(FinishReason.STOP, stop_id=c)


def test_of_causes_in_one_id_stop_text_comes_first_then_stop_id_then_length(any_text, open_output):
    a, c = spell(any_text, "A", "C")
    rules = {"max_tokens": 2, "stop_ids": frozenset([c])}
    assert collect(open_output(stop_texts=("AC",), **rules), [a, c]) == (
        "",
        2,
        0,
        Finish(FinishReason.STOP, stop_text="AC"),
    )
    assert open_output(**rules).push([a, c]).finish == Finish(FinishReason.STOP, stop_id=c)


def test_the_earliest_cause_wins(any_text, open_output):
    a, c, e = spell(any_text, "A", "C", "E")
    output = open_output(max_tokens=3, stop_ids=frozenset([c]), stop_texts=("E",))
    assert output.push([a, e, c]).finish == Finish(FinishReason.STOP, stop_text="E")


def test_nothing_stops_before_min_tokens(any_text, open_output, special_id):
    a, c = spell(any_text, "A", "C")
    ids = [special_id, c, a, c, special_id]
    rules = {"stop_ids": frozenset([special_id]), "stop_texts": ("C",), "min_tokens": 4}
    text, num_accepted, _, finish = collect(open_output(**rules), ids)
    assert (text, num_accepted, finish.stop_text) == ("CA", 4, "C")


def test_a_match_before_min_tokens_may_begin_a_longer_one(any_text, open_output):
    a, b, c = spell(any_text, "A", "B", "C")
    output = open_output(stop_texts=("AB", "ABC"), min_tokens=3)
    assert collect(output, [a, b, c])[0] == ""
    assert output.finish.stop_text == "ABC"


def test_given_ids_may_finish_it_with_nothing_to_send(any_text, open_output):
    ids = spell(any_text, "A END")
    first, again = open_output(stop_texts=("END",)), open_output(stop_texts=("END",))
    collect(first, ids)
    assert again.push(ids).finish == first.finish is not None


@settings(max_examples=150, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 2**20), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    num_known=st.integers(0, 40),
    min_tokens=st.integers(0, 8),
    max_tokens=st.integers(1, 40),
    stop_texts=st.lists(st.text("the aA\ufffd我", min_size=1, max_size=3), max_size=4),
    include_stop=st.booleans(),
    skip_special_tokens=st.booleans(),
)
def test_stream_equals_unary_and_a_resume_goes_on_where_it_was(
    any_text,
    *,
    numbers,
    cuts,
    num_known,
    min_tokens,
    max_tokens,
    stop_texts,
    include_stop,
    skip_special_tokens,
):
    ids = [number % any_text.table.vocab_size for number in numbers]
    rules = OutputRules(
        max_tokens,
        min_tokens,
        frozenset([ids[-1]]),
        tuple(stop_texts),
        include_stop=include_stop,
        skip_special_tokens=skip_special_tokens,
    )
    unary = OutputText(any_text.table, (), rules).push(ids)
    for size in {1, *cuts}:
        streamed = collect(OutputText(any_text.table, (), rules), ids, size)
        assert streamed == (unary.text, unary.num_accepted, unary.num_discarded, unary.finish)
    first, second = OutputText(any_text.table, (), rules), OutputText(any_text.table, (), rules)
    received = first.push(ids[:num_known])
    assert second.push(ids[:num_known]) == received
    assert received.text + second.push(ids[num_known:]).text == unary.text


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 2**20), max_size=5), numbers=st.lists(st.integers(0, 2**20), max_size=30)
)
def test_without_stops_the_text_is_all_of_it(any_text, prompt, numbers):
    vocab_size = any_text.table.vocab_size
    prompt, ids = [n % vocab_size for n in prompt], [n % vocab_size for n in numbers]
    output = OutputText(any_text.table, prompt, OutputRules(1000))
    text = output.push(ids).text + output.finish_run_time()
    before, whole = any_text.decode(prompt), any_text.decode(prompt + ids)
    assert text == (whole[len(before) :] if whole.startswith(before) else whole[len(before) - 1 :])


def test_ids_outside_the_vocabulary_are_no_text_and_no_exception():
    output = OutputText(TokenTable.from_definition(EMPTY), (), OutputRules(10))
    assert collect(output, [0, -1, 5, 2**31 - 1, 2**63 - 1, 0]) == ("aa", 6, 0, None)


EMPTY = (
    b'{"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": null, "decoder": {"type": "ByteLevel"}}'
)
