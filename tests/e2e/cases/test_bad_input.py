"""Input that must be refused in words a caller can act on, while nobody else notices."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc import StatusCode

from pagemesh import Answer, AsyncClient, Event, PagemeshError, RawText, Role, TokenChunk, TokenIds, collect
from pagemesh.errors import error_of
from pagemesh.v1 import gateway_pb2
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh
from tests.support.twins import chunks, said, stream

VOCAB_SIZE = 49_152
POOL_TOKENS = 4_096
SECRET = "Zwiebelfisch-4711"
"""In every prompt text; in no answer and no log."""
GOOD_PROMPTS = (TokenIds((504, 3575, 1000)), TokenIds((504, 3575, 1001)))
GOOD_LENGTH = 1_000
SCRIPT = {
    "scripts": [
        {
            "prompt_ids": list(prompt.ids),
            "output_ids": [1000 + (7 + i) * k % 20_000 for k in range(GOOD_LENGTH)],
            "step_ms": 2,
        }
        for i, prompt in enumerate(GOOD_PROMPTS)
    ]
}
SETTINGS = {"engine": {"num_blocks": POOL_TOKENS // 16 + 1}}
EDGES = (-(2**63), -1, VOCAB_SIZE, 2**31 - 1, 2**63 - 1)
"""Ids outside the vocabulary."""

Request = Message | bytes


@dataclass(frozen=True, slots=True)
class Bad:
    """One input with the status and field it must give."""

    name: str
    code: StatusCode
    field: str | None
    make: Callable[[str], Request]
    """Takes the id of a session of the user "owner"."""
    method: str = "Generate"
    reason: str = "INVALID_FIELD"


def ask(**fields: Any) -> gateway_pb2.GenerateRequest:
    """A good request but for what is given; `text=None` leaves the prompt out."""
    prompts = {"text", "ids", "conversation", "messages_json"}
    if not prompts & fields.keys():
        fields["text"] = f"My secret is {SECRET}."
    return gateway_pb2.GenerateRequest(**{"max_tokens": 4, **fields})


def segments(*turns: tuple[int, str]) -> dict[str, Any]:
    return {"segments": [{"role": role, "content": content} for role, content in turns]}


def invalid(name: str, field: str, **fields: Any) -> Bad:
    return Bad(name, StatusCode.INVALID_ARGUMENT, field, lambda session_id: ask(**fields))


def too_long(name: str, field: str, **fields: Any) -> Bad:
    request = ask(**fields)
    return Bad(name, StatusCode.INVALID_ARGUMENT, field, lambda session_id: request, reason="TOO_LONG")


def later(field: str, **fields: Any) -> Bad:
    code = StatusCode.UNIMPLEMENTED
    return Bad(f"later-{field}", code, field, lambda session_id: ask(**fields), reason="NOT_SUPPORTED")


def undecodable(name: str, content: bytes) -> Bad:
    return Bad(name, StatusCode.INVALID_ARGUMENT, None, lambda session_id: content, reason="UNDECODABLE")


def turn(name: str, code: StatusCode, field: str | None, reason: str, **more: Any) -> Bad:
    """A turn of the owner's session, but for what is given of session."""
    told = more.pop("session", {})
    prompt = {} if "text" in more else {"conversation": segments((Role.USER, SECRET))}

    def make(session_id: str) -> Request:
        return ask(**{**prompt, **more}, session={"id": session_id, "user_id": "owner", **told})

    return Bad(name, code, field, make, reason=reason)


def prompts() -> Iterator[Bad]:
    yield invalid("no-prompt", "prompt", text=None)
    yield invalid("empty-text", "text", text="")
    yield invalid("no-ids", "ids.ids", ids={})
    yield invalid("no-segments", "conversation.segments", conversation={})
    empty = segments((Role.SYSTEM, ""), (Role.USER, ""))
    yield invalid("empty-segments", "conversation.segments[0].content", conversation=empty)
    for number in (0, 99):
        unknown = segments((Role.USER, SECRET), (number, SECRET))
        yield invalid(f"role-{number}", "conversation.segments[1].role", conversation=unknown)
    system = segments((Role.USER, SECRET), (Role.SYSTEM, SECRET))
    yield invalid("system-second", "conversation.segments[1].role", conversation=system)
    for weight in (0.0, -1.0, math.nan, math.inf):
        one = {"segments": [{"role": Role.USER, "content": SECRET, "weight": weight}]}
        yield invalid(f"weight-{weight}", "conversation.segments[0].weight", conversation=one)
    yield from messages()
    system = segments((Role.SYSTEM, f"{SECRET} " * 200), (Role.USER, "hi"))
    yield too_long("system", "conversation.segments[0].content", conversation=system)
    yield too_long("text-bytes", "prompt", text=f"{SECRET} " * 100_000)
    yield too_long("text-tokens", "text", text=f"{SECRET} " * 2_000)
    yield too_long("ids-over-the-pool", "prompt", ids={"ids": [5] * (POOL_TOKENS + 1)})
    yield too_long("ids-fill-the-pool", "prompt", ids={"ids": [5] * POOL_TOKENS})
    yield too_long("output-over-the-pool", "max_tokens", ids={"ids": [5]}, max_tokens=POOL_TOKENS)
    yield too_long("output-2-to-the-32", "max_tokens", max_tokens=2**32 - 1)


def messages() -> Iterator[Bad]:
    wrong = {
        "": "",
        "[]": "",
        SECRET: "",
        "{}": "",
        '[{"role": "user", "content": ""}]': "",
        "[1]": "[0]",
        '[{"role": "user"}]': "[0].content",
        '[{"role": "user", "content": 5}]': "[0].content",
        f'[{{"content": "{SECRET}"}}]': "[0].role",
        f'[{{"role": "user", "content": "x"}}, {{"role": "robot", "content": "{SECRET}"}}]': "[1].role",
        '[{"role": "user", "content": "x"}' + "," * 5: "",
        "[" * 100_000: "",
    }
    for i, (content, place) in enumerate(wrong.items()):
        yield invalid(f"messages-{i}", f"messages_json{place}", messages_json=content)


def edges_of_ids() -> Iterator[Bad]:
    for edge in EDGES:
        yield invalid(f"prompt-id-{edge}", "ids.ids[1]", ids={"ids": [5, edge, 6]})
        yield invalid(f"stop-id-{edge}", "stop.ids[1]", stop={"ids": [5, edge]})
        bias = [{"token_id": 5, "bias": 1.0}, {"token_id": edge, "bias": 1.0}]
        yield invalid(f"bias-id-{edge}", "sampling.logit_bias[1].token_id", sampling={"logit_bias": bias})


def sampling() -> Iterator[Bad]:
    wrong = {
        "temperature": (math.nan, math.inf, -0.1, 100.5),
        "top_k": (-2, -(2**63)),
        "top_p": (math.nan, 0.0, -0.5, 1.1),
        "min_p": (math.nan, -0.1, 1.1),
        "repetition_penalty": (math.nan, 0.0, -1.0, 101.0),
        "presence_penalty": (math.nan, -2.1, 2.1),
        "frequency_penalty": (math.nan, -2.1, 2.1, -math.inf),
        "logprobs": (21, 2**32 - 1),
        "min_tokens": (5,),
    }
    for name, values in wrong.items():
        for value in values:
            yield invalid(f"{name}-{value}", f"sampling.{name}", sampling={name: value})
    for bias in (math.nan, math.inf, -math.inf, 100.5, 1e38):
        entries = [{"token_id": 5, "bias": bias}]
        yield invalid(f"bias-{bias}", "sampling.logit_bias[0].bias", sampling={"logit_bias": entries})
    twice = [{"token_id": 5, "bias": 1.0}] * 2
    yield invalid("bias-twice", "sampling.logit_bias[1].token_id", sampling={"logit_bias": twice})
    many = [{"token_id": i, "bias": 1.0} for i in range(1_025)]
    yield invalid("biases", "sampling.logit_bias", sampling={"logit_bias": many})


def others() -> Iterator[Bad]:
    absent = StatusCode.NOT_FOUND
    yield invalid("max-tokens-0", "max_tokens", max_tokens=0)
    yield invalid("choices", "n", n=65)
    yield invalid("choices-2-to-the-32", "n", n=2**32 - 1)
    yield invalid("stop-empty", "stop.texts[1]", stop={"texts": ["x", ""]})
    yield invalid("stop-long", "stop.texts[0]", stop={"texts": ["ü" * 128 + "x"]})
    yield invalid("stop-nul", "stop.texts[0]", stop={"texts": ["a\0b"]})
    yield invalid("stop-texts", "stop.texts", stop={"texts": ["x"] * 17})
    yield invalid("stop-ids", "stop.ids", stop={"ids": [5] * 65})
    yield invalid("priority", "priority", priority=9)
    yield invalid("truncation", "truncation.side", truncation={"side": 9})
    yield invalid("policy", "cache.policy", cache={"policy": 9})
    yield invalid("scope", "cache.scope", cache={"scope": 9})
    yield invalid("scope-without-session", "cache.scope", cache={"scope": gateway_pb2.CACHE_SCOPE_SESSION})
    yield invalid("request-id-nul", "request_id", request_id="a\0b")
    yield invalid("request-id-long", "request_id", request_id="x" * 129)
    for name in ("no-such", "smollm2\0", "x" * 100_000):
        request = ask(model=name)
        yield Bad(f"model-{name[:8]!r}", absent, "model", lambda _, it=request: it, reason="UNKNOWN_MODEL")
    yield later("constraint", constraint={"regex": SECRET})
    yield later("stream.sentence_pause_ms", stream={"sentence_pause_ms": 5})
    yield later("truncation.side", truncation={"side": gateway_pb2.TRUNCATION_SIDE_KEEP_IMPORTANT})


def bytes_of_no_message() -> Iterator[Bad]:
    good = ask().SerializeToString()
    yield undecodable("text-invalid-utf8", ask(text=f"{SECRET}?").SerializeToString().replace(b"?", b"\xff"))
    yield undecodable("text-surrogate", b"\x22\x03\xed\xa0\x80")
    yield undecodable(
        "stop-invalid-utf8", ask(stop={"texts": ["??"]}).SerializeToString().replace(b"??", b"\xc3\x28")
    )
    yield undecodable("request-id-invalid-utf8", b"\x0a\x01\xff" + good)
    yield undecodable("cut-off", good[:-1])
    yield undecodable("garbage", b"\xff" * 64)


def resumes() -> Iterator[Bad]:
    def resumed(name: str, field: str | None, resume: dict[str, Any], **more: Any) -> Bad:
        fields = {"request_id": "r", "client_attempt": 1, "seed": 1, **more}
        whole = {"prompt_ids": [5], "choices": [{}], "resume_token": b"x", **resume}
        return invalid(name, field or "", **fields, resume=whole)

    for edge in EDGES:
        yield resumed(f"resume-prompt-{edge}", "resume.prompt_ids[1]", {"prompt_ids": [5, edge]})
        output = [{"output_ids": [edge]}]
        yield resumed(f"resume-output-{edge}", "resume.choices[0].output_ids[0]", {"choices": output})
    yield resumed("resume-no-prompt", "resume.prompt_ids", {"prompt_ids": []})
    yield resumed("resume-no-token", "resume.resume_token", {"resume_token": b""})
    yield resumed("resume-choices", "resume.choices", {"choices": []})
    yield resumed("resume-no-name", "request_id", {}, request_id="")
    yield resumed("resume-attempt", "client_attempt", {}, client_attempt=0)
    resume = {"prompt_ids": [5], "choices": [{}], "resume_token": b"not one of ours"}
    fields = {"request_id": "r", "client_attempt": 1, "seed": 1, "resume": resume}
    code = StatusCode.FAILED_PRECONDITION
    yield Bad("resume-token", code, "resume.resume_token", lambda _: ask(**fields), reason="RESUME_MISMATCH")


def sessions() -> Iterator[Bad]:
    bad, absent = StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND
    yield turn("session-of-another", absent, "session.id", "UNKNOWN_SESSION", session={"user_id": "somebody"})
    yield turn("session-of-nobody", absent, "session.id", "UNKNOWN_SESSION", session={"user_id": ""})
    yield turn("session-unknown", absent, "session.id", "UNKNOWN_SESSION", session={"id": "none"})
    yield turn("session-id-missing", bad, "session.id", "INVALID_FIELD", session={"id": ""})
    yield turn("session-id-nul", bad, "session.id", "INVALID_FIELD", session={"id": "a\0b"})
    yield turn("session-user-nul", bad, "session.user_id", "INVALID_FIELD", session={"user_id": "owner\0"})
    stale = StatusCode.FAILED_PRECONDITION
    yield turn(
        "session-version", stale, "session.expect_version", "SESSION_VERSION", session={"expect_version": 7}
    )
    yield turn("session-text", bad, "text", "INVALID_FIELD", text=SECRET)
    yield turn("session-choices", bad, "n", "INVALID_FIELD", n=2)
    side = {"side": gateway_pb2.TRUNCATION_SIDE_LEFT}
    yield turn("session-truncated", bad, "truncation.side", "INVALID_FIELD", truncation=side)


def other_methods() -> Iterator[Bad]:
    bad, absent = StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND
    for user_id, name in (("a\0b", "nul"), ("ü" * 65, "long")):
        opened = gateway_pb2.OpenSessionRequest(user_id=user_id)
        yield Bad(f"open-{name}", bad, "user_id", lambda _, it=opened: it, "OpenSession")
    opened = gateway_pb2.OpenSessionRequest(user_id="u", model="no-such")
    yield Bad("open-model", absent, "model", lambda _: opened, "OpenSession", "UNKNOWN_MODEL")
    release = gateway_pb2.ReleaseSessionRequest
    yield Bad("release-missing", bad, "session_id", lambda _: release(), "ReleaseSession")
    stranger: Callable[[str], Request] = lambda id_: release(session_id=id_, user_id="somebody")  # noqa: E731
    yield Bad("release-of-another", absent, "session_id", stranger, "ReleaseSession", "UNKNOWN_SESSION")
    yield Bad("count-nothing", bad, "prompt", lambda _: gateway_pb2.CountTokensRequest(), "CountTokens")
    empty = gateway_pb2.CountTokensRequest(text="")
    yield Bad("count-empty", bad, "text", lambda _: empty, "CountTokens")
    yield Bad("count-garbage", bad, None, lambda _: b"\x12\x01\xff", "CountTokens", "UNDECODABLE")
    explain = gateway_pb2.ExplainRequest(request=ask(sampling={"top_p": 2.0}))
    yield Bad("explain", bad, "sampling.top_p", lambda _: explain, "Explain")


TABLE = [
    *prompts(),
    *edges_of_ids(),
    *sampling(),
    *others(),
    *bytes_of_no_message(),
    *resumes(),
    *sessions(),
    *other_methods(),
]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(engines=1, script=SCRIPT, settings=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    baseline = Baseline(mesh)
    yield
    baseline.check()
    assert SECRET not in mesh.all_logs(20_000)


@pytest.fixture(scope="module")
def undisturbed(mesh: Mesh) -> list[list[Event]]:
    """The good streams, with nobody else about."""

    async def run() -> list[list[Event]]:
        async with mesh.async_client() as client:
            return [await good(client, prompt) for prompt in GOOD_PROMPTS]

    return asyncio.run(run())


async def good(client: AsyncClient, prompt: TokenIds) -> list[Event]:
    return await stream(client, prompt, max_tokens=GOOD_LENGTH, temperature=0.0)


@asynccontextmanager
async def a_session(client: AsyncClient) -> AsyncIterator[str]:
    async with await client.open_session("owner") as session:
        yield session.session_id


class Wire:
    """Sends bytes as they are."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def refusal(self, method: str, request: Request) -> grpc.aio.AioRpcError:
        """The status that it ends with before any event."""
        content = request if isinstance(request, bytes) else request.SerializeToString()
        path = f"/pagemesh.v1.GatewayService/{method}"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if method == "Generate":
                async for event in self._channel.unary_stream(path)(content, timeout=20):
                    pytest.fail(f"an event of {len(event)} bytes before the refusal")
            else:
                await self._channel.unary_unary(path)(content, timeout=20)
        return caught.value


def check_refusal(bad: Bad, refusal: grpc.aio.AioRpcError) -> None:
    error = error_of(refusal)
    told = (error.code, error.reason, error.field)
    assert told == (bad.code, bad.reason, bad.field), error.message
    assert error.message
    # UNDECODABLE ends before there is a request that could have an account.
    assert bad.method != "Generate" or bad.reason == "UNDECODABLE" or error.receipt is not None
    raw = refusal.details().encode() + b"".join(
        value if isinstance(value, bytes) else value.encode() for _, value in refusal.trailing_metadata()
    )
    for word in (SECRET, "Traceback", 'File "', "Exception", "Error(", ".py", "object at 0x"):
        assert word.encode() not in raw, (word, error.message)
    assert len(raw) <= 4096


@asynccontextmanager
async def two_good_streams(
    client: AsyncClient, undisturbed: Sequence[Sequence[Event]]
) -> AsyncIterator[None]:
    """Both run before, throughout and after, and say what they would have said."""
    streams = [client.generate(prompt, max_tokens=GOOD_LENGTH, temperature=0.0) for prompt in GOOD_PROMPTS]
    heard = [[await anext(stream) for _ in range(2)] for stream in streams]
    yield
    for events, stream_, expected in zip(heard, streams, undisturbed, strict=True):
        events += [await anext(stream_) for _ in range(3)]
        assert isinstance(events[-1], TokenChunk), "the stream had ended before"
        ids = [token_id for chunk in chunks(events) for token_id in chunk.ids]
        whole = collect(expected).choices[0]
        assert tuple(ids) == whole.ids[: len(ids)]
        assert whole.text.startswith("".join(chunk.text for chunk in chunks(events)))
        await stream_.aclose()


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.name)
async def test_bad_input(mesh: Mesh, undisturbed: list[list[Event]], bad: Bad) -> None:
    async with mesh.async_client() as client, Wire(mesh.gateways[0]) as wire, a_session(client) as session_id:
        async with two_good_streams(client, undisturbed):
            check_refusal(bad, await wire.refusal(bad.method, bad.make(session_id)))
            probe = await client.collect(GOOD_PROMPTS[0], max_tokens=5, temperature=0.0)
            assert probe.choices[0].ids == collect(undisturbed[0]).choices[0].ids[:5]
        turn_after = await client.collect(RawText("good"), max_tokens=2)
        assert turn_after.usage.completion_tokens == 2


async def test_all_of_it_at_once(mesh: Mesh, undisturbed: list[list[Event]]) -> None:
    """The whole table, while two streams run from their beginning to their end."""
    async with mesh.async_client() as client, Wire(mesh.gateways[0]) as wire, a_session(client) as session_id:
        streams = [asyncio.create_task(good(client, prompt)) for prompt in GOOD_PROMPTS]
        slow = {"explain"}  # limited per second
        rows = [bad for bad in TABLE if bad.name not in slow]
        refusals = await asyncio.gather(*(wire.refusal(bad.method, bad.make(session_id)) for bad in rows))
        were_running = [not stream_.done() for stream_ in streams]
        heard = await asyncio.gather(*streams)
    for bad, refusal in zip(rows, refusals, strict=True):
        check_refusal(bad, refusal)
    assert [said(collect(events)) for events in heard] == [said(collect(events)) for events in undisturbed]
    assert all(were_running)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "NUL is legal here: \0"},
        {"text": " "},
        {"conversation": segments((Role.USER, "a\0b"))},
        {"ids": {"ids": [0, VOCAB_SIZE - 1]}},
        {"stop": {"ids": [0, VOCAB_SIZE - 1], "texts": ["ü" * 128]}},
        {"stop": {"texts": ["~"] * 16, "ids": [5] * 64}},
        {"sampling": {"logit_bias": [{"token_id": VOCAB_SIZE - 1, "bias": 100.0}]}},
        {"sampling": {"logit_bias": [{"token_id": i, "bias": -100.0} for i in range(1_024)]}},
        {"sampling": {"logprobs": 20, "min_tokens": 4, "temperature": 100.0, "min_p": 1.0}},
        {"ids": {"ids": [5] * (POOL_TOKENS - 1)}, "max_tokens": 1},
        {"request_id": "ü" * 64},
        {"model": "smollm2", "n": 64, "max_tokens": 1},
    ],
    ids="-".join,
)  # fmt: skip
async def test_what_is_just_within_the_limits(mesh: Mesh, fields: dict[str, Any]) -> None:
    async with mesh.async_client() as client:
        answer = collect([event async for event in client.stream(ask(**fields))])
    assert answer.usage.completion_tokens == fields.get("max_tokens", 4) * fields.get("n", 1)


async def test_a_second_turn_while_one_runs(mesh: Mesh) -> None:
    async with mesh.async_client() as client, await client.open_session("owner") as session:
        first = session.generate("Begin.", max_tokens=GOOD_LENGTH, ignore_eos=True)
        heard = [await anext(first) for _ in range(2)]
        request = ask(
            conversation=segments((Role.USER, SECRET)),
            session={"id": session.session_id, "user_id": "owner"},
        )
        async with Wire(mesh.gateways[0]) as wire:
            refusal = await wire.refusal("Generate", request)
            check_refusal(
                Bad("", StatusCode.ABORTED, None, lambda _: request, reason="TURN_RUNNING"), refusal
            )
        assert 0 < (error_of(refusal).retry_delay_s or 0) < 10
        heard.append(await anext(first))
        assert isinstance(heard[-1], TokenChunk)
        await first.aclose()
        answer = await next_turn(client, request)
    assert answer.receipt.history_saved and answer.usage.completion_tokens == 4


async def next_turn(client: AsyncClient, request: gateway_pb2.GenerateRequest) -> Answer:
    """As a caller does who was told when to try again."""
    while True:
        try:
            return collect([event async for event in client.stream(request)])
        except PagemeshError as error:
            assert error.reason == "TURN_RUNNING"
            await asyncio.sleep(error.retry_delay_s or 0)
