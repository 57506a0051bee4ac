"""Streaming text equals the library's decode of the whole, for every kind of vocabulary."""

import codecs
import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.text.detokenizer import Detokenizer, TokenTable, UnsupportedTokenizer

MIXED = "我很高兴 ďábelské ไทย 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇿"
IDS = st.lists(st.integers(0, 2**20), max_size=40)


def stream(vocabulary, prompt_ids, output_ids, skip_special_tokens=True):
    detokenizer = Detokenizer(vocabulary.table, prompt_ids, skip_special_tokens)
    return [detokenizer.push(token_id) for token_id in output_ids] + [detokenizer.flush()]


def in_vocabulary(vocabulary, numbers):
    """Maps any numbers to ids, a few of them just outside the vocabulary."""
    return [number % (vocabulary.table.vocab_size + 3) for number in numbers]


def one_shot(vocabulary, ids, skip_special_tokens=True):
    """Text of all bytes at once: the library's, but for invalid runs of byte-fallback vocabularies."""
    kept = [i for i in ids if not (skip_special_tokens and i in vocabulary.table.special_ids)]
    pieces = [vocabulary.table.piece(i) or b"" for i in kept]
    return b"".join(pieces).decode("utf-8", "replace")


def test_many_token_characters_arrive_whole_on_twenty_interleaved_streams(any_text):
    ids = any_text.library.encode(MIXED).ids
    outputs = [Detokenizer(any_text.table, (), True) for _ in range(20)]
    chunks = [[] for _ in outputs]
    for token_id in ids:
        for output, received in zip(outputs, chunks, strict=True):
            received.append(output.push(token_id))
    for output, received in zip(outputs, chunks, strict=True):
        assert "".join(received) == MIXED
        assert output.flush() == ""
        assert not any("\ufffd" in chunk for chunk in received)


@settings(max_examples=150, deadline=None)
@given(prompt=IDS, output=IDS, skip=st.booleans())
def test_stream_is_decode_of_all_minus_decode_of_prompt(vocabulary, prompt, output, skip):
    prompt, output = in_vocabulary(vocabulary, prompt), in_vocabulary(vocabulary, output)
    if vocabulary.name == "byte_fallback" and "\ufffd" in one_shot(vocabulary, prompt + output, skip):
        return  # the library spoils a whole run of bytes there; the next test has its own oracle
    before, whole = vocabulary.decode(prompt, skip), vocabulary.decode(prompt + output, skip)
    text = "".join(stream(vocabulary, prompt, output, skip))
    if whole.startswith(before):
        assert text == whole[len(before) :]
    else:  # the output completed a character that the prompt left unfinished
        assert before.endswith("\ufffd")
        assert text == whole[len(before) - 1 :]


@settings(max_examples=150, deadline=None)
@given(numbers=st.lists(st.integers(3, 258), max_size=12))
def test_each_maximal_invalid_part_of_fallback_bytes_is_one_replacement(byte_fallback_vocabulary, numbers):
    text = "".join(stream(byte_fallback_vocabulary, [1], [3 + 0x41, *numbers]))
    assert text == one_shot(byte_fallback_vocabulary, [3 + 0x41, *numbers])


def test_every_split_of_every_kind_of_bytes_decodes_like_the_whole():
    """The law of replacement rests on the standard library's incremental decoder; this is its proof."""
    kinds = (
        0x41,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC2,
        0xDF,
        0xE0,
        0xE1,
        0xED,
        0xF0,
        0xF1,
        0xF4,
        0xFF,
    )
    for size in (1, 2, 3):
        for chosen in itertools.product(kinds, repeat=size):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = "".join(decoder.decode(bytes([byte])) for byte in chosen) + decoder.decode(b"", final=True)
            assert text == bytes(chosen).decode("utf-8", "replace"), bytes(chosen)


def test_ten_thousand_random_ids_never_raise_and_normal_text_after_them_is_exact(any_text):
    chooser = random.Random(7)
    junk = [chooser.randrange(-5, any_text.table.vocab_size + 500) for _ in range(10_000)]
    detokenizer = Detokenizer(any_text.table, (), True)
    sent = "".join(detokenizer.push(token_id) for token_id in junk)
    known = [token_id for token_id in junk if any_text.table.piece(token_id) is not None]
    after = "".join(
        detokenizer.push(token_id) for token_id in any_text.library.encode(" and then: " + MIXED).ids
    )
    assert after.removeprefix("\ufffd") == " and then: " + MIXED
    assert sent + after == any_text.decode(known + any_text.library.encode(" and then: " + MIXED).ids)


def test_nothing_but_an_unfinished_character_is_held_back(any_text):
    detokenizer = Detokenizer(any_text.table, (), True)
    sent, given_bytes = "", b""
    for token_id in any_text.library.encode("plain words, then 👩‍👩‍👧 and é").ids:
        sent += detokenizer.push(token_id)
        given_bytes += any_text.table.piece(token_id)
        assert len(given_bytes) - len(sent.encode()) <= 3
        assert sent == given_bytes.decode("utf-8", "ignore")


def test_special_tokens_are_hidden_by_default_and_shown_once_if_asked(any_text):
    special = min(any_text.table.special_ids)
    ids = [*any_text.library.encode("a").ids, special, *any_text.library.encode("b").ids]
    assert "".join(stream(any_text, [], ids)) == "ab"
    name = any_text.library.id_to_token(special)
    assert "".join(stream(any_text, [], ids, skip_special_tokens=False)) == f"a{name}b"


def test_a_hidden_token_inside_a_character_does_not_break_it(any_text):
    first, *rest = (
        any_text.library.encode("ไ").ids if any_text.name == "byte_level" else _split_character(any_text)
    )
    special = min(any_text.table.special_ids)
    assert "".join(stream(any_text, [], [first, special, *rest])) == any_text.decode([first, *rest])


def _split_character(vocabulary):
    ids = vocabulary.library.encode("👩").ids
    assert len(ids) > 1
    return ids


def test_the_first_space_goes_only_where_the_text_begins(byte_fallback_vocabulary):
    space_the, the_rest = (
        byte_fallback_vocabulary.library.token_to_id("▁The"),
        byte_fallback_vocabulary.library.token_to_id("▁a"),
    )
    assert "".join(stream(byte_fallback_vocabulary, [1], [space_the, the_rest])) == "The a"
    assert "".join(stream(byte_fallback_vocabulary, [1, the_rest], [space_the])) == " The"


def test_a_character_that_the_prompt_began_is_completed_or_blamed_on_the_prompt(byte_fallback_vocabulary):
    prompt, last = [3 + 0xE2, 3 + 0x82], 3 + 0xAC
    letter = byte_fallback_vocabulary.library.token_to_id("b")
    assert "".join(stream(byte_fallback_vocabulary, prompt, [last, letter])) == "€b"
    assert "".join(stream(byte_fallback_vocabulary, prompt, [letter])) == "b"
    assert "".join(stream(byte_fallback_vocabulary, prompt, [])) == ""


def test_a_copy_goes_its_own_way(any_text):
    ids = any_text.library.encode("我a").ids
    detokenizer = Detokenizer(any_text.table, (), True)
    head = detokenizer.push(ids[0])
    twin = detokenizer.copy()
    tail = "".join(detokenizer.push(token_id) for token_id in ids[1:])
    assert head + tail == "我a"
    assert head + "".join(twin.push(token_id) for token_id in ids[1:]) == "我a"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}],
        },
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "ByteFallback"}]},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""},
    ],
)
def test_a_decoder_that_is_not_understood_is_refused_by_name(decoder):
    definition = {"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": [], "decoder": decoder}
    with pytest.raises(UnsupportedTokenizer, match="decoder"):
        TokenTable.from_definition(json.dumps(definition).encode())
