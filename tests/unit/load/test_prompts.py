"""Prompts: lengths as asked for, each one its own, and the same again from the same seed."""

import itertools
import json

import numpy as np
import pytest

from bench.load.prompts import TOKENS_PER_WORD, conversations
from bench.load.spec import TOKEN_BINS, WORD_COUNTS, Inputs, Lengths, LoadSpec, SpecError


def prompts(count, seed=0, **inputs):
    spec = LoadSpec("none", inputs=Inputs(**inputs), seed=seed)
    return list(itertools.islice(conversations(spec), count))


def test_word_counts_are_drawn_evenly_and_a_seed_repeats_them():
    drawn = prompts(2000)
    lengths = [len(item.turns[0].split()) - 1 for item in drawn]
    shares = [lengths.count(words) / 2000 for words in WORD_COUNTS]
    assert sum(shares) == 1 and shares == pytest.approx([0.2] * 5, abs=0.03)
    assert prompts(50) == drawn[:50] and prompts(50, seed=1) != drawn[:50]


@pytest.mark.parametrize("seed", [0, 1])
def test_no_two_prompts_begin_alike(seed):
    """Not even between two seeds: a prefix cache finds nothing that was not asked for."""
    heads = [item.turns[0][:5] for item in prompts(3000, seed=seed)]
    assert len(set(heads)) == 3000


def test_bins_have_their_shares_of_tokens():
    drawn = prompts(3000, lengths=Lengths.BINS)
    tokens = np.array([6 + TOKENS_PER_WORD * (len(item.turns[0].split()) - 1) for item in drawn])
    edges = [0, *(most + 1 for _, _, most in TOKEN_BINS)]
    shares = np.histogram(tokens, edges)[0] / 3000
    assert shares == pytest.approx([share for share, _, _ in TOKEN_BINS], abs=0.03)
    assert min(len(item.turns[0]) for item in drawn) == 1


def test_the_real_tokenizer_counts_what_the_bins_say(default_tokenizer):
    drawn = prompts(400, lengths=Lengths.BINS)
    tokens = [len(default_tokenizer.encode(item.turns[0], add_special_tokens=False).ids) for item in drawn]
    shares = np.histogram(tokens, [0, 65, 257, 1200])[0] / 400
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.08)


def test_shared_prefixes_are_so_many_and_the_rest_differs():
    drawn = prompts(200, shared_prefix_words=50, num_prefixes=3)
    heads = {" ".join(item.turns[0].split()[:51]) for item in drawn}
    assert len(heads) == 3 and len({item.turns[0] for item in drawn}) == 200


def test_conversations_have_their_turns():
    assert {len(item.turns) for item in prompts(5, num_turns=3)} == {3}


def test_a_recorded_file_is_read_in_the_order_of_its_times(tmp_path):
    file = tmp_path / "recorded.jsonl"
    rows = [{"prompt": "b", "at_s": 2}, {"turns": ["a", "c"], "at_s": 1, "max_tokens": 3}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    first, second = prompts(9, lengths=Lengths.FILE, file=file)
    assert (first.turns, first.max_tokens, first.at_s) == (("a", "c"), 3, 1.0)
    assert (second.turns, second.max_tokens) == (("b",), 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no requests"),
        ('{"at_s": 1}', ":1: a request has a prompt"),
        ("{", ":1: "),
        ('{"turns": "one text"}', ":1: turns is no list"),
        ('{"prompt": "a", "at_s": "soon"}', ":1: at_s is no number"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, text, message):
    file = tmp_path / "recorded.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        prompts(1, lengths=Lengths.FILE, file=file)
    with pytest.raises(SpecError, match="No such file"):
        prompts(1, lengths=Lengths.FILE, file=tmp_path / "none")
