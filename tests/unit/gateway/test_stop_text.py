"""The first stop text is found wherever the text is cut, and only what may become one is held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.text.stop_text import StopText

WORDS = st.text("abé", min_size=1, max_size=4)


def first_match(text, stop_texts, min_end=0):
    """By looking at every end in turn: the match that ends first, the longest of those."""
    for end in range(min_end, len(text) + 1):
        ending = [stop for stop in stop_texts if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def stream(pieces, stop_texts):
    matcher = StopText(stop_texts)
    sent = []
    for piece in pieces:
        text, match = matcher.push(piece, True)
        sent.append(text)
        if match is not None:
            return sent, match.stop_text
    return [*sent, matcher.flush()], None


@given(pieces=st.lists(st.text("abé", max_size=5), max_size=12), stop_texts=st.lists(WORDS, max_size=5))
def test_any_cut_finds_what_the_whole_text_shows(pieces, stop_texts):
    sent, stop_text = stream(pieces, stop_texts)
    assert ("".join(sent), stop_text) == first_match("".join(pieces), stop_texts)


@given(
    text=st.text("ab", max_size=30), stop_texts=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1)
)
def test_only_a_true_prefix_of_a_stop_text_is_held_back(text, stop_texts):
    matcher = StopText(stop_texts)
    sent = ""
    for length, character in enumerate(text, start=1):
        certain, match = matcher.push(character, True)
        if match is not None:
            return
        sent += certain
        held = text[len(sent) : length]
        assert any(stop.startswith(held) and stop != held for stop in stop_texts)
        longer = [text[start:length] for start in range(len(sent))]
        assert not any(stop.startswith(tail) for stop in stop_texts for tail in longer)


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=10),
    stop_texts=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    num_deaf=st.integers(0, 10),
)
def test_a_match_in_deaf_text_is_ignored_but_may_begin_a_longer_one(pieces, stop_texts, num_deaf):
    matcher = StopText(stop_texts)
    sent, found = "", None
    for i, piece in enumerate(pieces):
        certain, match = matcher.push(piece, i >= num_deaf)
        sent += certain
        if match is not None:
            found = match.stop_text
            break
    else:
        sent += matcher.flush()
    min_end = len("".join(pieces[:num_deaf])) + 1
    assert (sent, found) == first_match("".join(pieces), stop_texts, min_end)


@pytest.mark.parametrize(
    ("stop_texts", "text", "before", "stop_text"),
    [
        (["DEFGHIJ"], "ABCDEFGHIJKL", "ABC", "DEFGHIJ"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["abc", "bc"], "xabc", "x", "abc"),
        (["ab", "abab"], "abab", "", "ab"),
        (["aab"], "aaab", "a", "aab"),
        (["很高"], "我很高兴", "我", "很高"),
        (["👧‍👦"], "a 👩‍👩‍👧 👧‍👦", "a 👩‍👩‍👧 ", "👧‍👦"),
    ],
)
def test_the_match_that_ends_first_wins_and_the_longer_of_two(stop_texts, text, before, stop_text):
    for pieces in (list(text), [text]):
        sent, found = stream(pieces, stop_texts)
        assert ("".join(sent), found) == (before, stop_text)


def test_a_copy_goes_its_own_way():
    matcher = StopText(["abc"])
    matcher.push("ab", True)
    twin = matcher.copy()
    assert matcher.push("x", True) == ("abx", None)
    assert twin.push("c", True)[1] is not None
