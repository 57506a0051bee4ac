"""Faults of encoding from the field, as a caller of the gateway meets them: ids, counts, refusals agree."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import grpc
import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pagemesh import (
    Answer,
    AsyncClient,
    Options,
    PagemeshError,
    Prompt,
    RawText,
    Role,
    Segment,
    TokenIds,
    TruncationSide,
)
from pagemesh.v1 import gateway_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.contract.model_folder import resolve_model
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.tiny_models import VOCAB_SIZE as TINY_VOCAB_SIZE
from tests.support.tiny_models import make_tiny_model

BOS, BOS_TEXT = 0, "<|endoftext|>"
"""Of the strict model."""
STRICT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ROLES = {"system": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT, "tool": Role.TOOL}
SECRET = "Zwiebelfisch"

Turns = Sequence[tuple[str, str]]


def make_strict_model(folder: Path) -> Path:
    """Its post-processor and its template write BOS; the template knows no system and no two in a row."""
    make_tiny_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS_TEXT} $A", special_tokens=[(BOS_TEXT, BOS)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS_TEXT, eos_token="<|im_end|>")
    fast.chat_template = STRICT_TEMPLATE
    fast.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Bench:
    """A mesh, and the library's own tokenizer and template for its model."""

    mesh: Mesh
    oracle: Any

    async def ask(self, client: AsyncClient, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        return await client.collect(prompt, **{"max_tokens": 1, "ignore_eos": True, **options})  # type: ignore[misc]

    async def ids(self, prompt: Prompt, **options: Unpack[Options]) -> list[int]:
        """Of the prompt, as the gateway ran it; every count of the answer agrees."""
        async with self.mesh.async_client() as client:
            answer = await self.ask(client, prompt, **options)
            counts = {answer.started.num_prompt_tokens, answer.usage.prompt_tokens}
            counts.add(answer.receipt.prompt_tokens)
            if not isinstance(prompt, TokenIds) and "truncation_side" not in options:
                counts.add(await client.count_tokens(prompt))
        assert counts == {len(answer.started.prompt_ids)}
        assert answer.usage.total_tokens == len(answer.started.prompt_ids) + answer.usage.completion_tokens
        return list(answer.started.prompt_ids)

    async def encoded(self, **prompt: Any) -> list[int]:
        """By the tokenizer itself."""
        async with grpc.aio.insecure_channel(self.mesh.address("tokenizer-0")) as channel:
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            return list((await stub.Encode(tokenizer_pb2.EncodeRequest(**prompt), timeout=10)).ids)

    def templated(self, turns: Turns) -> list[int]:
        """By the library."""
        ids = self.oracle.apply_chat_template(messages(turns), add_generation_prompt=True, return_dict=False)
        return list(ids)


def messages(turns: Turns) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def segments(turns: Turns) -> list[Segment]:
    return [Segment(ROLES[role], content) for role, content in turns]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """The default model."""
    with Mesh(engines=1) as mesh:
        yield Bench(mesh, AutoTokenizer.from_pretrained(resolve_model("smollm2")))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A model that adds BOS and whose template refuses much."""
    folder = make_strict_model(tmp_path_factory.mktemp("strict"))
    script = {"vocab_size": TINY_VOCAB_SIZE, "max_model_len": 512}
    with Mesh(engines=1, model=folder, script=script) as mesh:
        yield Bench(mesh, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    names = {"bench", "strict"} & set(request.fixturenames)
    baselines = [Baseline(request.getfixturevalue(name).mesh) for name in sorted(names)]
    yield
    for baseline in baselines:
        baseline.check()


CONVERSATIONS: dict[str, Turns] = {
    "one": [("user", "What is 2 + 2?")],
    "system": [("system", "Be brief."), ("user", "x  5, naïve café 我很高兴 👩‍👩‍👧‍👦")],
    "talk": [
        ("user", " leading"),
        ("assistant", "trailing \n"),
        ("user", "Why 12?\n\n"),
        ("user", "And 13?"),
    ],
    "tool": [("user", "Weather?"), ("tool", '{"c": 21}'), ("assistant", "21 °C."), ("user", "Thanks")],
    "empty-answer": [("user", "a"), ("assistant", ""), ("user", "b")],
    "space": [("user", " ")],
}


@pytest.mark.parametrize("turns", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
async def test_all_paths_of_a_conversation_give_the_same_ids(bench: Bench, turns: Turns) -> None:
    """B01: segments, messages, the rendered ids, the tokenizer's own answer, and the library's."""
    expected = bench.templated(turns)
    assert await bench.ids(segments(turns)) == expected
    assert await bench.ids(messages(turns)) == expected
    assert await bench.ids(TokenIds(tuple(expected))) == expected
    wire = [{"role": int(ROLES[role]), "content": content} for role, content in turns]
    assert await bench.encoded(conversation={"segments": wire}) == expected
    assert await bench.encoded(messages_json=json.dumps(messages(turns))) == expected


@pytest.mark.parametrize("text", ["Hello", "<|im_start|>Hello", "<|im_start|>", " ", "\n x  5 我"])
async def test_raw_text_gets_no_bos_where_none_is_added(bench: Bench, text: str) -> None:
    """B01: the configuration names a BOS token, the post-processor does not write it."""
    ids = await bench.ids(RawText(text))
    assert ids == await bench.encoded(text=text)
    assert bench.oracle.bos_token_id not in ids
    assert bench.oracle.decode(ids) == text


@pytest.mark.parametrize("text", ["Hello", f"{BOS_TEXT}Hello", BOS_TEXT, " "])
async def test_raw_text_gets_one_bos_where_it_is_added(strict: Bench, text: str) -> None:
    """B01: text that spells it stays text."""
    ids = await strict.ids(RawText(text))
    assert ids == await strict.encoded(text=text)
    assert ids[0] == BOS and ids.count(BOS) == 1
    assert strict.oracle.decode(ids[1:]) == text


async def test_a_template_that_writes_bos_gets_no_second_one(strict: Bench) -> None:
    """B01: one BOS, however the conversation comes."""
    turns = [("user", "Hi"), ("assistant", "Yes?"), ("user", f"What is {BOS_TEXT}?")]
    expected = await strict.ids(segments(turns))
    assert expected == await strict.ids(messages(turns))
    assert expected[0] == BOS and expected.count(BOS) == 1
    plain = [("user", "Hi"), ("assistant", "Yes?"), ("user", "Why?")]
    assert await strict.ids(segments(plain)) == strict.templated(plain)


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    wire = [{"role": int(ROLES[role]), "content": content} for role, content in turns]
    return {"conversation": {"segments": wire}}


EMPTY: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "prompt"),
    "text": ({"text": ""}, "text"),
    "ids": ({"ids": {}}, "ids.ids"),
    "segments": ({"conversation": {}}, "conversation.segments"),
    "content": (conversation(("user", "")), "conversation.segments[0].content"),
    "contents": (conversation(("system", ""), ("user", "")), "conversation.segments[0].content"),
    "messages": ({"messages_json": "[]"}, "messages_json"),
    "no-json": ({"messages_json": ""}, "messages_json"),
    "message-content": ({"messages_json": '[{"role": "user", "content": ""}]'}, "messages_json"),
    "message-parts": ({"messages_json": '[{"role": "user", "content": []}]'}, "messages_json"),
}


@pytest.mark.parametrize(("prompt", "field"), EMPTY.values(), ids=EMPTY.keys())
@pytest.mark.parametrize("kind", ["bench", "strict"])
async def test_an_empty_prompt_is_refused_and_harms_nobody(
    request: pytest.FixtureRequest, kind: str, prompt: dict[str, Any], field: str
) -> None:
    """B02: also where BOS would make it one id. The processes are the same afterwards: see `at_rest`."""
    bench: Bench = request.getfixturevalue(kind)
    async with bench.mesh.async_client() as client:
        good = asyncio.create_task(bench.ask(client, " ", max_tokens=50))
        error = await refusal(client, gateway_pb2.GenerateRequest(max_tokens=1, **prompt))
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert error.field == field
        assert (await good).usage.completion_tokens == 50
        assert (await bench.ask(client, RawText(" "))).usage.prompt_tokens >= 1


async def refusal(client: AsyncClient, request: gateway_pb2.GenerateRequest) -> PagemeshError:
    with pytest.raises(PagemeshError) as caught:
        [_ async for _ in client.stream(request, timeout_s=10)]
    return caught.value


@dataclass(frozen=True)
class Wish:
    """What one caller wants."""

    prompt: Prompt
    options: Options


LONG = "alpha beta gamma 123 " * 30
WISHES = (
    Wish(RawText(LONG), Options(truncation_side=TruncationSide.LEFT, max_prompt_tokens=16)),
    Wish(RawText(LONG), Options(truncation_side=TruncationSide.RIGHT, max_prompt_tokens=16)),
    Wish(RawText(LONG), Options()),
    Wish([Segment(Role.USER, LONG)], Options()),
    Wish([Segment(Role.USER, LONG)], Options(truncation_side=TruncationSide.LEFT, max_prompt_tokens=16)),
    Wish(RawText("a <|im_end|> b"), Options()),
)
NUM_CALLERS, NUM_CALLS = 32, 12


async def test_callers_at_once_do_not_get_each_others_wishes(bench: Bench) -> None:
    """B06: truncation on either side, none and count-only, on the same texts, each as if alone."""
    async with bench.mesh.async_client() as client:

        async def ask(wish: Wish) -> tuple[tuple[int, ...], int]:
            answer = await bench.ask(client, wish.prompt, **wish.options)
            return answer.started.prompt_ids, answer.receipt.truncated_tokens

        alone = [await ask(wish) for wish in WISHES]
        counts = [await client.count_tokens(wish.prompt) for wish in WISHES]
        assert [len(ids) + num_truncated for ids, num_truncated in alone] == counts
        assert [len(ids) for ids, _ in alone[:2]] == [16, 16] and counts[0] > 100

        async def caller(number: int) -> int:
            for step in range(NUM_CALLS):
                index = (number + 5 * step) % len(WISHES)
                if (number + step) % 3:
                    assert await ask(WISHES[index]) == alone[index]
                else:
                    assert await client.count_tokens(WISHES[index].prompt) == counts[index]
            return NUM_CALLS

        num_calls = sum(await asyncio.gather(*map(caller, range(NUM_CALLERS))))
    assert num_calls == NUM_CALLERS * NUM_CALLS


async def test_truncation_keeps_the_end_that_was_asked_for(bench: Bench, strict: Bench) -> None:
    """B08: what the post-processor puts in front stays, and counts among the ids to keep."""
    whole = await bench.ids(RawText(" one two three four five" * 20))
    assert len(whole) == 100
    left = Options(truncation_side=TruncationSide.LEFT, max_prompt_tokens=10)
    right = Options(truncation_side=TruncationSide.RIGHT, max_prompt_tokens=10)
    for prompt in (RawText(" one two three four five" * 20), TokenIds(tuple(whole))):
        assert await bench.ids(prompt, **left) == whole[-10:]
        assert await bench.ids(prompt, **right) == whole[:10]
    with_bos = await strict.ids(RawText("abcdefghij" * 10))
    for prompt in (RawText("abcdefghij" * 10), TokenIds(tuple(with_bos))):
        assert await strict.ids(prompt, **left) == [BOS, *with_bos[-9:]]
        assert await strict.ids(prompt, **right) == with_bos[:10]


async def test_a_prompt_over_the_limit_is_no_shorter_prompt(strict: Bench) -> None:
    """B08: without truncation it is an error that states both numbers; with it, what the output leaves."""
    async with strict.mesh.async_client() as client:
        prompts: dict[str, Prompt] = {
            "conversation.segments": [Segment(Role.USER, "a" * 600)],
            "text": RawText("a" * 600),
        }
        for field, prompt in prompts.items():
            with pytest.raises(PagemeshError, match=r"prompt has 6\d\d tokens; the limit is 512") as caught:
                await strict.ask(client, prompt)
            assert (caught.value.reason, caught.value.field) == ("TOO_LONG", field)
        chat = [Segment(Role.USER, "a" * 600)]
        num_tokens = len(strict.templated([("user", "a" * 600)]))
        answer = await strict.ask(client, chat, max_tokens=12, truncation_side=TruncationSide.LEFT)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (500, 12)
        assert answer.receipt.truncated_tokens == num_tokens - 500


NORMAL: dict[str, list[dict[str, Any]]] = {
    "system-only": [{"role": "system", "content": "Be brief."}],
    "two-users": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "assistant-first": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    "tool-without-call": [{"role": "tool", "content": "21"}],
}


@pytest.mark.parametrize("turns", NORMAL.values(), ids=NORMAL.keys())
async def test_an_odd_conversation_is_what_its_template_makes_of_it(
    bench: Bench, turns: list[dict[str, Any]]
) -> None:
    """B09: this template takes any order of roles."""
    pairs = [(turn["role"], turn["content"]) for turn in turns]
    assert await bench.ids(turns) == bench.templated(pairs) == await bench.ids(segments(pairs))


async def test_a_content_of_parts_is_their_text(bench: Bench) -> None:
    """B09."""
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 2 + 2?"}]
    by_parts = await bench.ids([{"role": "user", "content": parts}])
    assert by_parts == bench.templated([("user", "What is 2 + 2?")])


REFUSED: dict[str, tuple[Turns, int, str]] = {
    "system": ([("system", SECRET), ("user", "a")], 0, "System role not supported"),
    "system-only": ([("system", SECRET)], 0, "System role not supported"),
    "two-users": ([("user", SECRET), ("user", SECRET)], 1, "Roles must alternate"),
    "assistant-first": ([("assistant", SECRET), ("user", "a")], 0, "Roles must alternate"),
    "tool-second-user": ([("user", "a"), ("tool", SECRET), ("tool", SECRET)], 2, "Roles must alternate"),
}


@pytest.mark.parametrize(("turns", "index", "reason"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_a_template_refuses_is_the_callers_fault_in_its_words(
    strict: Bench, turns: Turns, index: int, reason: str
) -> None:
    """B09: which message, why, and nothing of the template or the contents."""
    prompts: dict[str, Prompt] = {"conversation.segments": segments(turns), "messages_json": messages(turns)}
    async with strict.mesh.async_client() as client:
        for path, prompt in prompts.items():
            for call in (strict.ask(client, prompt), client.count_tokens(prompt)):
                with pytest.raises(PagemeshError) as caught:
                    await call
                error = caught.value
                assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TEMPLATE")
                assert error.field == f"{path}[{index}]" and f"message {index}: {reason}" in error.message
                assert not [word for word in ("{%", "{{", "raise_exc", SECRET) if word in str(error)]
        assert (await strict.ask(client, "a")).usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("message", "field", "reason"),
    [
        ({"role": "developer", "content": SECRET}, "messages_json[0].role", "INVALID_FIELD"),
        ({"role": "user", "content": {"text": SECRET}}, "messages_json[0].content", "INVALID_FIELD"),
        ({"role": "user", "content": None}, "messages_json[0].content", "INVALID_FIELD"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages_json[0].content[0]", "NOT_SUPPORTED"),
    ],
    ids=["role", "object", "null", "image"],
)
async def test_a_message_of_another_kind_names_its_place(
    bench: Bench, message: dict[str, Any], field: str, reason: str
) -> None:
    """B09: never INTERNAL, never the content."""
    async with bench.mesh.async_client() as client:
        with pytest.raises(PagemeshError) as caught:
            await bench.ask(client, [message])
    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert SECRET not in str(caught.value)
