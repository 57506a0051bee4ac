"""A long text in windows has the ids of the whole, in every family and for texts that have no good seam."""

import asyncio
import random
import sys
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.contract.errors import MeshError, Reason
from services.tokenizer.lru import Lru
from services.tokenizer.run_encoder import MAX_LARGE_CHARS, RunEncoder, entry_cost
from services.tokenizer.vocabulary import RunText, Vocabulary
from services.tokenizer.windows import CHECK_CHARS, WINDOW_CHARS, windows

FAMILIES = ("real", "byte-level", "unigram", "llama-bpe")
WINDOW = 6 * CHECK_CHARS
LENGTH = 5 * WINDOW


def prose(rng: random.Random) -> str:
    words = [
        "the",
        "quick",
        "Brown",
        "naïve",
        "café",
        "我很高兴",
        "ไทย",
        "12",
        "345",
        "\n",
        "\n\n  ",
        "😀",
        "it's",
    ]
    return " ".join(rng.choice(words) for _ in range(LENGTH // 4))


TEXTS: dict[str, Callable[[random.Random], str]] = {
    "prose": prose,
    "one letter": lambda rng: "a" * LENGTH,
    "digits": lambda rng: "".join(rng.choices("0123456789", k=LENGTH)),
    "spaces": lambda rng: " " * LENGTH,
    "letters without end": lambda rng: "".join(rng.choices("abcdeth", k=LENGTH)),
    "no spaces": lambda rng: "".join(rng.choices("我很高兴ไทยé😀", k=LENGTH)),
    "white space": lambda rng: "".join(rng.choices(" \n\t\r", k=LENGTH)),
    "anything": lambda rng: "".join(rng.choices("ab1 \n.é😀\u0301<|>s/", k=LENGTH)),
    "control tokens spelled": lambda rng: "".join(
        rng.choices(["<|im_end|>", "</s>", "<s>", " a", "<|im_"], k=LENGTH // 5)
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_head", [True, False])
def test_ids_and_offsets_are_those_of_the_whole(
    vocabularies: dict[str, Vocabulary], name: str, kind: str, is_head: bool
) -> None:
    vocabulary = vocabularies[name]
    text = TEXTS[kind](random.Random(7))
    ids, offsets = vocabulary.encode_run_with_offsets(RunText(text, is_head))

    def encode(part: str, is_head: bool) -> tuple[list[int], list[tuple[int, int]]]:
        found, places = vocabulary.encode_run_with_offsets(RunText(part, is_head))
        return list(found), list(places)

    joined_ids: list[int] = []
    joined_offsets: list[tuple[int, int]] = []
    for window in windows(encode, text, is_head, window_chars=WINDOW):
        joined_ids += window.ids
        joined_offsets += [(start + window.start, end + window.start) for start, end in window.offsets]
    assert joined_ids == list(ids)
    assert joined_offsets == list(offsets)


@pytest.mark.parametrize("kind", ["prose", "digits", "one letter", "no spaces"])
def test_the_default_model_needs_windows_of_bounded_size(
    vocabularies: dict[str, Vocabulary], kind: str
) -> None:
    longest = 0

    def encode(part: str, is_head: bool) -> tuple[list[int], list[tuple[int, int]]]:
        nonlocal longest
        longest = max(longest, len(part))
        ids, offsets = vocabularies["real"].encode_run_with_offsets(RunText(part, is_head))
        return list(ids), list(offsets)

    for _ in windows(encode, TEXTS[kind](random.Random(8)), True, window_chars=WINDOW):
        pass
    assert longest == WINDOW


def test_a_seam_that_changes_ids_is_not_taken() -> None:
    """Ids that tell how many characters follow: no part stands alone, so the window grows to the whole."""

    def encode(part: str, is_head: bool) -> tuple[list[int], list[tuple[int, int]]]:
        first = 0 if is_head else 1000
        return [first + n for n in range(len(part))], [(n, n + 1) for n in range(len(part))]

    (window,) = windows(encode, "a" * (3 * WINDOW), True, window_chars=WINDOW)
    assert len(window.ids) == 3 * WINDOW


def test_long_runs_go_through_windows_and_come_as_plain_numbers(
    vocabularies: dict[str, Vocabulary],
) -> None:
    vocabulary = vocabularies["real"]
    text = prose(random.Random(9)) * (1 + WINDOW_CHARS // LENGTH)
    short, long = vocabulary.encode_runs([RunText(" a b", False), RunText(text, False)])
    expected = vocabulary.encode_run_with_offsets(RunText(text, False))[0]
    assert isinstance(long, array) and list(long) == list(expected)
    assert list(short) == list(vocabulary.encode_run_with_offsets(RunText(" a b", False))[0])
    assert list(vocabulary.encode_trusted(text)) == list(vocabulary.encode_runs([RunText(text, True)])[0])


async def test_too_much_waiting_text_is_refused_and_room_returns(vocabularies: dict[str, Vocabulary]) -> None:
    ended = threading.Event()

    def encode(name: str) -> str:
        ended.wait(10)
        return name

    with ThreadPoolExecutor(1) as thread:
        runs = RunEncoder(vocabularies["real"], thread, thread, Lru(0), lambda hits, misses: None)
        half = MAX_LARGE_CHARS // 2
        held = [asyncio.ensure_future(runs.off_loop(half, encode, name)) for name in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(MeshError) as caught:
            await runs.off_loop(half, encode, "c")
        assert caught.value.reason is Reason.QUEUE_FULL and caught.value.retry_delay_s
        ended.set()
        assert await asyncio.gather(*held) == ["a", "b"]
        assert await runs.off_loop(half, encode, "d") == "d"


def test_a_cached_entry_costs_the_bytes_it_holds() -> None:
    for text in ("a" * 100_000, "é" * 100_000, "我" * 100_000, "😀" * 100_000):
        assert 0 <= entry_cost([text], 50_000) - sys.getsizeof(text) - 200_000 < 1000
