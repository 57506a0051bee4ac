"""Faults of streamed text from the field: an answer is what the whole output decodes to, and no more."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pagemesh import AsyncClient, Event, FinishReason, Options, RawText, TokenIds, collect
from tests.support.baseline import Baseline
from tests.support.default_text import DefaultText
from tests.support.mesh import Mesh
from tests.support.twins import chunks, said, stream, twins

MAX_IDS_PER_STEP = 50
SCRIPTURE = "我很高兴 ďábelské ไทย 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇿"
FAMILY = "👩‍👩‍👧‍👦"
EOS, BOS, END_OF_TEXT = 2, 1, 0
"""Of the default model: <|im_end|>, <|im_start|>, <|endoftext|>."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(engines=1, script={"max_ids_per_step": MAX_IDS_PER_STEP}) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    baseline = Baseline(mesh)
    yield
    baseline.check()


@pytest.fixture(scope="module")
def words() -> DefaultText:
    return DefaultText()


def prompt(number: int) -> TokenIds:
    """Different for every number, and plain text."""
    return TokenIds((504, 3575, 282, 1000 + number))


def part(number: int, output_ids: Sequence[int], **more: object) -> dict[str, object]:
    """Of a script: what the engine says to prompt(number)."""
    return {"prompt_ids": list(prompt(number).ids), "output_ids": list(output_ids), **more}


def force(mesh: Mesh, *parts: dict[str, object]) -> None:
    mesh.write_script({"max_ids_per_step": MAX_IDS_PER_STEP, "scripts": list(parts)})


async def ask(mesh: Mesh, asked: TokenIds | RawText, **options: Any) -> list[Event]:
    async with mesh.async_client() as client:
        return await twins(client, asked, **options)


def text_of(events: list[Event]) -> str:
    return "".join(chunk.text for chunk in chunks(events))


async def test_characters_of_several_tokens_in_twenty_streams(mesh: Mesh, words: DefaultText) -> None:
    """A02."""
    pieces = SCRIPTURE.split(" ")
    texts = [" ".join(pieces[i % 6 :] + pieces[: i % 6]) for i in range(20)]
    outputs = [words.ids(text) for text in texts]
    force(mesh, *(part(i, ids, step_ms=5) for i, ids in enumerate(outputs)))
    before = mesh.metrics("engine-0")
    async with mesh.async_client() as client:
        streams = await asyncio.gather(
            *(stream(client, prompt(i), max_tokens=len(ids)) for i, ids in enumerate(outputs))
        )
        unary = [await client.collect(prompt(i), max_tokens=len(outputs[i])) for i in range(6)]
    for text, ids, events in zip(texts, outputs, streams, strict=True):
        assert text_of(events) == text == words.text(ids)
        assert "\ufffd" not in text_of(events)
    assert [said(answer) for answer in unary] == [said(collect(events)) for events in streams[:6]]
    after = mesh.metrics("engine-0")
    assert steps_above_16(after) - steps_above_16(before) > 20, "the streams were not interleaved"


def steps_above_16(metrics: Any) -> float:
    name = "pagemesh_engine_step_sequences"
    return float(metrics.value(f"{name}_count") - metrics.value(f"{name}_bucket", le="16.0"))


async def test_an_unfinished_character_before_a_space(mesh: Mesh, words: DefaultText) -> None:
    """A02: the rest of the character never comes; what follows is exact."""
    ids = [*words.ids(FAMILY)[:2], *words.ids(" the end 我"), *words.ids("🇨🇿")[:1]]
    force(mesh, part(0, ids))
    events = await ask(mesh, prompt(0), max_tokens=len(ids))
    assert text_of(events) == words.text(ids)
    assert text_of(events).startswith("\ufffd the end 我")


@dataclass(frozen=True, slots=True)
class StopCase:
    """What is forced, what stops it, and what is left."""

    name: str
    pieces: str
    """Tokens, parted by |."""
    stop: tuple[str, ...]
    text: str
    stop_reason: str | None
    num_tokens: int
    options: Options = field(default_factory=Options)


ALPHABET = "ABC|DEF|G|HI|JS|L"
STOP_CASES = [
    StopCase("over-tokens-ends-within-one", ALPHABET, ("DEFGHIJ",), "ABC", "DEFGHIJ", 5),
    StopCase("one-is-a-prefix", ALPHABET, ("DEFGHIJ", "DEF"), "ABC", "DEF", 2),
    StopCase("a-common-start-parts", ALPHABET, ("DEFGX", "DEFGHI"), "ABC", "DEFGHI", 4),
    StopCase("the-first-to-end-wins", ALPHABET, ("DEFGHIJ", "GHI"), "ABCDEF", "GHI", 4),
    StopCase("the-first-within-a-token-wins", ALPHABET, ("EF", "BCD", "F"), "A", "BCD", 2),
    StopCase("the-longer-of-two-that-end-together", ALPHABET, ("EF", "DEF"), "ABC", "DEF", 2),
    StopCase("all-there-is", ALPHABET, ("ABC",), "", "ABC", 1),
    StopCase("only-a-beginning", ALPHABET, ("GHX", "ZZ"), "ABCDEFGHIJSL", None, 6),
    StopCase(
        "shown-if-asked-for", ALPHABET, ("DEFGHIJ",), "ABCDEFGHIJ", "DEFGHIJ", 5, {"include_stop": True}
    ),
    StopCase("starts-again-within", "A|A|B|A|A|B|C|D", ("AABC",), "AAB", "AABC", 7),
    StopCase("not-too-soon", "ABC|DEF|ABC|DEF|L", ("CDE",), "ABCDEFAB", "CDE", 4, {"min_tokens": 4}),
]


@pytest.mark.parametrize("case", STOP_CASES, ids=lambda case: case.name)
async def test_a_stop_text(mesh: Mesh, words: DefaultText, case: StopCase) -> None:
    """A03."""
    ids = words.pieces(*case.pieces.split("|"))
    max_tokens = len(ids) if case.stop_reason is None else 100
    force(mesh, part(1, ids))
    events = await ask(mesh, prompt(1), stop=case.stop, max_tokens=max_tokens, **case.options)
    check_stop(events, case.text, case.stop_reason, case.num_tokens)


def check_stop(events: list[Event], text: str, stop_reason: str | None, num_tokens: int) -> None:
    answer = collect(events)
    finish = FinishReason.LENGTH if stop_reason is None else FinishReason.STOP
    assert (text_of(events), answer.text) == (text, text)
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == (finish, stop_reason)
    assert len(answer.choices[0].ids) == answer.usage.completion_tokens == num_tokens


@pytest.mark.parametrize("stop", ["高兴", "ไทย", FAMILY, "👧"])
async def test_a_stop_text_of_other_scripts(mesh: Mesh, words: DefaultText, stop: str) -> None:
    """A03: characters of several tokens in the stop text; none of it shows."""
    text = SCRIPTURE[: SCRIPTURE.index(stop)]
    force(mesh, part(1, words.ids(SCRIPTURE)))
    events = await ask(mesh, prompt(1), stop=stop, max_tokens=100)
    assert (text_of(events), collect(events).choices[0].stop_reason) == (text, stop)


@pytest.mark.parametrize("asked", ["ABC DEFGHIJ L", "ABC DEFGHI", "J"])
async def test_a_stop_text_in_the_prompt(mesh: Mesh, words: DefaultText, asked: str) -> None:
    """A03: neither within the prompt nor over its end."""
    ids = words.pieces("JS", "L", "ABC")
    force(mesh, {"prompt_ids": words.ids(asked), "output_ids": ids})
    events = await ask(mesh, RawText(asked), stop=["DEFGHIJ", "IJ"], max_tokens=len(ids))
    check_stop(events, "JSLABC", None, 3)


@pytest.mark.parametrize("end", ["length", "eos", "stop-id"])
async def test_text_held_back_is_given_at_the_end(mesh: Mesh, words: DefaultText, end: str) -> None:
    """A04."""
    ids, stop_id = words.pieces("a", " <", "en"), {"length": None, "eos": EOS, "stop-id": 9_000}[end]
    force(mesh, part(2, [*ids, 9_000 if stop_id is None else stop_id]))
    max_tokens = len(ids) if stop_id is None else 100
    stop_ids = [9_000] if end == "stop-id" else []
    events = await ask(mesh, prompt(2), stop="<end>", stop_ids=stop_ids, max_tokens=max_tokens)
    answer = collect(events)
    assert (text_of(events), answer.choices[0].stop_reason) == ("a <en", stop_id)
    assert chunks(events)[-1].text == "<en", "the last chunk brings what was held back"
    finish = FinishReason.LENGTH if stop_id is None else FinishReason.STOP
    assert answer.choices[0].finish_reason is finish
    assert answer.usage.completion_tokens == len(ids) + (stop_id is not None)


@pytest.mark.parametrize("ids_per_step", [1, 7, MAX_IDS_PER_STEP])
@pytest.mark.parametrize("max_tokens", [1, 2, 50])
async def test_the_last_message_keeps_its_tokens(
    mesh: Mesh, words: DefaultText, max_tokens: int, ids_per_step: int
) -> None:
    """A05."""
    ids = words.ids("One for sorrow, two for joy, three for a girl, four for a boy. " * 8)
    assert len(ids) > 2 * MAX_IDS_PER_STEP
    force(mesh, part(3, ids, ids_per_step=ids_per_step))
    events = await ask(mesh, prompt(3), max_tokens=max_tokens)
    answer = collect(events)
    assert text_of(events) == words.text(ids[:max_tokens]) != ""
    assert sum(len(chunk.ids) for chunk in chunks(events)) == answer.usage.completion_tokens == max_tokens
    assert max(len(chunk.ids) for chunk in chunks(events)) >= min(ids_per_step, max_tokens)
    assert answer.choices[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("end", ["text", "eos"])
async def test_an_end_within_a_message(mesh: Mesh, words: DefaultText, end: str) -> None:
    """A05: what an engine drew past the end in the same step is neither shown nor counted."""
    ids = [
        *words.pieces("ABC", "DEF"),
        EOS if end == "eos" else words.pieces("G")[0],
        *words.pieces("HI", "L"),
    ]
    force(mesh, part(3, ids * 10, ids_per_step=MAX_IDS_PER_STEP))
    events = await ask(mesh, prompt(3), max_tokens=100, stop="FG")
    answer = collect(events)
    assert text_of(events) == ("ABCDEF" if end == "eos" else "ABCDE")
    assert answer.usage.completion_tokens == len(answer.choices[0].ids) == 3
    assert answer.choices[0].stop_reason == (EOS if end == "eos" else "FG")


@pytest.mark.parametrize("ids_per_step", [1, 16])
async def test_ids_that_make_no_text(mesh: Mesh, words: DefaultText, ids_per_step: int) -> None:
    """A07: ten thousand ids of the whole vocabulary, then normal text; neighbours are not touched."""
    dice, broken = random.Random(7), words.broken_ids()
    assert len(broken) > 128
    num_junk = 10_000 if ids_per_step > 1 else 1_000
    junk = [
        dice.choice(broken) if dice.random() < 0.3 else dice.randrange(words.vocab_size)
        for _ in range(num_junk)
    ]
    end, neighbour = words.ids(f" And then normal text: {SCRIPTURE}."), words.ids(SCRIPTURE) * 3
    force(
        mesh,
        part(4, [*junk, *end], ids_per_step=ids_per_step),
        part(5, neighbour, step_ms=1),
        part(6, neighbour),
    )
    async with mesh.async_client() as client:
        undisturbed = [await calm(client, i, len(neighbour)) for i in (5, 6)]
        events, *beside = await asyncio.gather(
            stream(client, prompt(4), max_tokens=num_junk + len(end), ignore_eos=True),
            *(calm(client, i, len(neighbour)) for i in (5, 6)),
        )
    assert text_of(events) == words.text([*junk, *end])
    assert text_of(events).endswith(f" And then normal text: {SCRIPTURE}.")
    assert collect(events).usage.completion_tokens == num_junk + len(end)
    assert [said(collect(one)) for one in beside] == [said(collect(one)) for one in undisturbed]


async def calm(client: AsyncClient, number: int, max_tokens: int) -> list[Event]:
    return await stream(client, prompt(number), max_tokens=max_tokens)


@pytest.mark.parametrize("is_skipped", [None, True, False])
async def test_control_tokens_in_the_output(mesh: Mesh, words: DefaultText, is_skipped: bool | None) -> None:
    """A09: out of the text by default, counted all the same; shown once if asked for."""
    ids = [*words.ids("one"), BOS, *words.ids(" two"), EOS, END_OF_TEXT, *words.ids(" three")]
    force(mesh, part(7, ids))
    options: Options = {} if is_skipped is None else {"skip_special_tokens": is_skipped}
    events = await ask(mesh, prompt(7), max_tokens=len(ids), ignore_eos=True, **options)
    expected = (
        "one two three" if is_skipped is not False else "one<|im_start|> two<|im_end|><|endoftext|> three"
    )
    assert text_of(events) == expected
    assert collect(events).usage.completion_tokens == len(ids)


@pytest.mark.parametrize("stop_id", [EOS, END_OF_TEXT, BOS, 55])
@pytest.mark.parametrize(
    ("is_skipped", "include_stop"), [(True, False), (False, False), (True, True), (False, True)]
)
async def test_the_stop_token_itself(
    mesh: Mesh, words: DefaultText, stop_id: int, is_skipped: bool, include_stop: bool
) -> None:
    """A09: out of the text unless asked for; a special one is also hidden while special tokens are."""
    is_special = stop_id != 55
    force(mesh, part(8, [*words.ids("one two"), stop_id, *words.ids(" three")]))
    events = await ask(
        mesh,
        prompt(8),
        max_tokens=100,
        stop_ids=[stop_id],
        skip_special_tokens=is_skipped,
        include_stop=include_stop,
    )
    answer = collect(events)
    is_shown = include_stop and not (is_special and is_skipped)
    assert text_of(events) == "one two" + (words.text([stop_id], False) if is_shown else "")
    assert answer.choices[0].stop_reason == stop_id
    assert answer.usage.completion_tokens == len(answer.choices[0].ids) == 3


@pytest.mark.parametrize(("is_skipped", "text"), [(True, ""), (False, "<|im_start|>" * 3)])
async def test_a_control_token_by_bias(mesh: Mesh, is_skipped: bool, text: str) -> None:
    """A09: drawn, not forced."""
    force(mesh)
    events = await ask(
        mesh,
        prompt(9),
        max_tokens=3,
        temperature=0.0,
        logit_bias={BOS: 100.0},
        skip_special_tokens=is_skipped,
    )
    assert (text_of(events), collect(events).choices[0].ids) == (text, (BOS,) * 3)


@pytest.mark.parametrize("ids_per_step", [1, 5])
@pytest.mark.parametrize("logprobs", [0, 2, 20])
async def test_log_probabilities_in_a_stream(
    mesh: Mesh, words: DefaultText, logprobs: int, ids_per_step: int
) -> None:
    """A10: one entry per token, each its own, the same as the unary call's."""
    ids = words.ids(SCRIPTURE)
    force(mesh, part(10, ids, ids_per_step=ids_per_step))
    events = await ask(mesh, prompt(10), max_tokens=len(ids), logprobs=logprobs)
    assert max(len(chunk.ids) for chunk in chunks(events)) >= ids_per_step
    for chunk in chunks(events):
        assert [entry.chosen.token_id for entry in chunk.logprobs] == list(chunk.ids)
    entries = collect(events).choices[0].logprobs
    assert len(entries) == len(ids)
    for entry in entries:
        values = [candidate.logprob for candidate in entry.top]
        assert len(values) == logprobs and values == sorted(values, reverse=True)
        assert entry.chosen.logprob <= 0
        assert not entry.top or entry.top[0] == entry.chosen, "forced ids are the likeliest"
    alternatives = [entry.top[1:] for entry in entries]
    assert not logprobs or len(set(alternatives)) == len(alternatives), "two tokens share their alternatives"


async def test_log_probabilities_of_drawn_tokens(mesh: Mesh) -> None:
    """A10: a drawn token need not be among the likeliest; without the option there are none."""
    force(mesh)
    events = await ask(mesh, prompt(11), max_tokens=24, logprobs=3, temperature=2.0, seed=3)
    entries = collect(events).choices[0].logprobs
    assert any(entry.chosen not in entry.top for entry in entries)
    assert all(entry.chosen.logprob <= entry.top[0].logprob for entry in entries)
    plain = await ask(mesh, prompt(11), max_tokens=24, temperature=2.0, seed=3)
    assert collect(plain).choices[0].ids == collect(events).choices[0].ids
    assert not any(chunk.logprobs for chunk in chunks(plain))
