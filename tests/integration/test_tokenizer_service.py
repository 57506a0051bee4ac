"""A tokenizer process with the default model: what callers see over gRPC, and how it starts and ends."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import Tokenizer

from pagemesh.v1 import gateway_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from services.contract.default_model import fetch_default_model
from services.contract.errors import Reason
from services.contract.status import from_rpc_error

CHECKOUT = Path(__file__).resolve().parents[2]
SEGMENTS = "conversation.segments"
Request = tokenizer_pb2.EncodeRequest


def start(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.tokenizer", *flags], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True
    )


def wait_ready(process: subprocess.Popen[str]) -> str:
    """The address of the READY line."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("READY pagemesh-tokenizer "):
            return line.split()[-1]
    raise AssertionError("".join(lines))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_default_model()


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def address(folder: Path, metrics_port: int) -> Iterator[str]:
    process = start("--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{metrics_port}")
    yield wait_ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> "tokenizer_pb2_grpc.TokenizerServiceAsyncStub":
    return tokenizer_pb2_grpc.TokenizerServiceStub(channel)


def conversation(*turns: tuple[str, str], **fields: object) -> tokenizer_pb2.EncodeRequest:
    segments = [
        gateway_pb2.Segment(role=gateway_pb2.Role.Value(f"ROLE_{role.upper()}"), content=content)
        for role, content in turns
    ]
    return Request(conversation=gateway_pb2.Conversation(segments=segments), **fields)  # type: ignore[arg-type]


async def test_health_knows_the_process_the_service_and_the_model(channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "pagemesh.v1.TokenizerService", "model/smollm2"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_segments_messages_and_the_whole_agree(stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> None:
    turns = (("system", "Be brief."), ("user", "What is 2 + 2?"))
    by_segments = await stub.Encode(conversation(*turns))
    messages = json.dumps([{"role": role, "content": content} for role, content in turns])
    by_messages = await stub.Encode(Request(messages_json=messages))
    assert by_segments.ids == by_messages.ids
    decoded = await stub.Decode(tokenizer_pb2.DecodeRequest(ids=by_segments.ids))
    assert decoded.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    shown = await stub.Decode(tokenizer_pb2.DecodeRequest(ids=by_segments.ids, skip_special_tokens=True))
    assert "<|im_start|>" not in shown.text


async def test_a_hot_query_is_warm_for_its_first_caller(
    stub: tokenizer_pb2_grpc.TokenizerServiceStub,
) -> None:
    answer = await stub.Encode(conversation(("user", "What is machine learning?")))
    assert answer.num_cached == len(answer.ids) > 0
    assert answer.encode_us > 0


async def test_the_definition_comes_in_pieces_that_hash_to_its_name(
    stub: tokenizer_pb2_grpc.TokenizerServiceStub,
) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    ask = tokenizer_pb2.GetTokenizerDefinitionRequest
    pieces = [piece async for piece in stub.GetTokenizerDefinition(ask())]
    content = b"".join(piece.content for piece in pieces)
    assert max(len(piece.content) for piece in pieces) <= 512 * 1024
    assert hashlib.sha256(content).hexdigest() == info.definition_sha256 == pieces[0].sha256
    assert pieces[0].total_bytes == len(content)
    assert Tokenizer.from_str(content.decode()).get_vocab_size() == info.vocab_size == 49152
    again = [piece async for piece in stub.GetTokenizerDefinition(ask(have_sha256=info.definition_sha256))]
    assert [piece.content for piece in again] == [b""]
    assert list(info.eos_ids) == [2] and info.session_mode == tokenizer_pb2.SESSION_MODE_APPEND
    assert info.has_safe_seams and info.max_prompt_tokens == 8192 and not info.prefix_ids


def continued(*tail_ids: int, **prompt: str) -> tokenizer_pb2.EncodeRequest:
    request = Request(**prompt) if prompt else conversation(("user", "a"))  # type: ignore[arg-type]
    request.continuation.SetInParent()
    request.continuation.tail_ids.extend(tail_ids)
    return request


KEEP = gateway_pb2.TRUNCATION_SIDE_KEEP_IMPORTANT
DEVELOPER = '[{"role": "developer", "content": "y"}]'
BAD: dict[str, tuple[tokenizer_pb2.EncodeRequest, Reason, str]] = {
    "nothing": (Request(), Reason.INVALID_FIELD, "prompt"),
    "empty text": (Request(text=""), Reason.INVALID_FIELD, "text"),
    "no segments": (conversation(), Reason.INVALID_FIELD, SEGMENTS),
    "empty contents": (conversation(("system", ""), ("user", "")), Reason.INVALID_FIELD, SEGMENTS),
    "no role": (conversation(("unspecified", "b")), Reason.INVALID_FIELD, f"{SEGMENTS}[0].role"),
    "late system": (
        conversation(("user", "a"), ("system", "b")), Reason.INVALID_FIELD, f"{SEGMENTS}[1].role",
    ),
    "no messages": (Request(messages_json="[]"), Reason.INVALID_FIELD, "messages_json"),
    "bad JSON": (Request(messages_json="[{"), Reason.INVALID_FIELD, "messages_json"),
    "bad role": (Request(messages_json=DEVELOPER), Reason.INVALID_FIELD, "messages_json[0].role"),
    "too many ids": (Request(text=" a" * 9120), Reason.TOO_LONG, "text"),
    "too many bytes": (Request(text="a" * 2_000_000), Reason.TOO_LONG, "text"),
    "asked for less": (Request(text=" a" * 30, max_tokens=20), Reason.TOO_LONG, "text"),
    "long system": (
        conversation(("system", " a" * 513), ("user", "b")), Reason.TOO_LONG, f"{SEGMENTS}[0].content",
    ),
    "unknown side": (
        Request(text="a", truncation_side=9), Reason.INVALID_FIELD, "truncation_side",  # type: ignore[arg-type]
    ),
    "later side": (Request(text="a", truncation_side=KEEP), Reason.NOT_SUPPORTED, "truncation_side"),
    "empty tail": (continued(), Reason.INVALID_FIELD, "continuation.tail_ids"),
    "bad tail": (continued(49152), Reason.INVALID_FIELD, "continuation.tail_ids[0]"),
    "text goes on": (continued(1, text="a"), Reason.INVALID_FIELD, "continuation"),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "reason", "field"), BAD.values(), ids=BAD.keys())
async def test_bad_prompts_name_the_field_and_disturb_nobody(
    channel: grpc.aio.Channel,
    stub: tokenizer_pb2_grpc.TokenizerServiceStub,
    request_: tokenizer_pb2.EncodeRequest,
    reason: Reason,
    field: str,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Encode(request_)
    error = from_rpc_error(caught.value)
    assert (error.reason, error.field) == (reason, field)
    assert "Traceback" not in error.message and len(error.message) < 200
    assert (await stub.Encode(Request(text=" "))).ids


async def test_over_the_limit_states_both_numbers(stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="prompt has 9120 tokens; the limit is 8192"):
        await stub.Encode(Request(text=" a" * 9120))
    with pytest.raises(grpc.aio.AioRpcError, match="prompt has 9120 tokens; the limit is 8192"):
        await stub.Encode(Request(text=" a" * 9120, max_tokens=100_000))


async def test_truncation_is_per_request(stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> None:
    text = " one two three four five" * 20
    whole = list((await stub.Encode(Request(text=text))).ids)
    side = gateway_pb2.TRUNCATION_SIDE_LEFT
    left = await stub.Encode(Request(text=text, truncation_side=side, max_tokens=10))
    side = gateway_pb2.TRUNCATION_SIDE_RIGHT
    right = await stub.Encode(Request(text=text, truncation_side=side, max_tokens=10))
    assert (list(left.ids), list(right.ids)) == (whole[-10:], whole[:10])
    assert left.num_truncated == right.num_truncated == 90
    assert list((await stub.Encode(Request(text=text))).ids) == whole


async def test_large_texts_take_turns_in_little_memory_and_hold_up_nobody(folder: Path) -> None:
    process = start("--listen", "127.0.0.1:0", "--model", str(folder))
    try:
        async with grpc.aio.insecure_channel(wait_ready(process)) as channel:
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            before = _peak_mib(process)
            side = gateway_pb2.TRUNCATION_SIDE_LEFT
            texts = [f"{number}: " + "0123456789" * 100_000 for number in range(2)]
            large = [asyncio.ensure_future(stub.Encode(Request(text=t, truncation_side=side))) for t in texts]
            num_small = 0
            while not all(answer.done() for answer in large):
                assert (await stub.Encode(Request(text=f"a short one {num_small} " * 500))).ids
                num_small += 1
            answers = [await answer for answer in large]
            assert [answer.num_truncated + len(answer.ids) for answer in answers] == [1_000_003] * 2
            assert num_small > 20
            assert _peak_mib(process) - before < 150
    finally:
        process.kill()
        process.communicate()


def _peak_mib(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


async def test_undecodable_bytes_and_ids_out_of_vocabulary(
    channel: grpc.aio.Channel, stub: tokenizer_pb2_grpc.TokenizerServiceStub
) -> None:
    raw = channel.unary_unary("/pagemesh.v1.TokenizerService/Encode")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw(b"\x0a\x02\xff\xff")
    assert from_rpc_error(caught.value).reason is Reason.UNDECODABLE
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Decode(tokenizer_pb2.DecodeRequest(ids=[1, 49152]))
    assert from_rpc_error(caught.value).field == "ids[1]"


async def test_callers_at_once_with_mixed_wishes(stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> None:
    left = gateway_pb2.TRUNCATION_SIDE_LEFT
    wishes = [
        Request(text="alpha beta gamma " * 30, truncation_side=left, max_tokens=16),
        Request(text="alpha beta gamma " * 30),
        Request(text="delta " * 900),
        conversation(("user", "alpha <|im_end|> beta")),
    ]
    serial = [list((await stub.Encode(wish)).ids) for wish in wishes]

    async def caller(seed: int) -> None:
        for step in range(12):
            index = (seed + step) % len(wishes)
            assert list((await stub.Encode(wishes[index])).ids) == serial[index]

    await asyncio.gather(*(caller(seed) for seed in range(32)))


async def test_metrics_count_calls_and_cache_hits(
    stub: tokenizer_pb2_grpc.TokenizerServiceStub, metrics_port: int
) -> None:
    await stub.Encode(Request(text="count me"))
    await stub.Encode(Request(text="count me"))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as page:  # noqa: ASYNC210
        text = page.read().decode()
    assert 'pagemesh_tokenizer_requests_total{method="Encode",outcome="ok"}' in text
    assert 'pagemesh_tokenizer_cache_lookups_total{cache="exact",result="hit"}' in text
    assert "pagemesh_tokenizer_encode_seconds_bucket" in text


def ends(*flags: str) -> tuple[int, str, float]:
    started_s = time.monotonic()
    process = start(*flags)
    _, errors = process.communicate(timeout=20)
    return process.returncode, errors, time.monotonic() - started_s


def copy_of(folder: Path, target: Path) -> Path:
    """The folder with weights of one number, which are hashed in no time."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    header = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (target / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return target


def test_bad_model_folders_end_the_process_with_one_line(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    corrupt = copy_of(folder, tmp_path / "corrupt")
    (corrupt / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}}}')
    template = copy_of(folder, tmp_path / "template")
    (template / "chat_template.jinja").write_text("{% for m in %}")
    for model in (tmp_path / "missing", empty, corrupt, template):
        code, errors, seconds = ends("--model", str(model), "--listen", "127.0.0.1:0")
        lines = [line for line in errors.splitlines() if "Traceback" not in line]
        assert code == 1 and len(errors.splitlines()) == len(lines) == 1, errors
        assert str(model) in errors and ";" in errors
        assert seconds < 10


def test_a_port_in_use_and_bad_settings_end_the_process_with_one_line(address: str, tmp_path: Path) -> None:
    code, errors, _ = ends("--listen", address)
    assert code == 3 and address.rsplit(":", 1)[1] in errors.splitlines()[-1]
    code, errors, _ = ends("--encode-threads", "0")
    assert code == 2 and len(errors.splitlines()) == 1
    code, errors, _ = ends("--hot-queries", str(tmp_path / "none.txt"), "--listen", "127.0.0.1:0")
    assert code == 1 and "none.txt" in errors and len(errors.splitlines()) == 1


async def test_the_template_process_is_replaced_and_ends_with_its_parent(folder: Path) -> None:
    process = start("--listen", "127.0.0.1:0")
    address = wait_ready(process)
    first = _template_process(process)
    os.kill(first, signal.SIGKILL)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        await _until(lambda: not _template_processes(process))
        roles = ("user", "user", "user")  # a pattern that only the template can tell
        assert (await stub.Encode(conversation(*((role, "a") for role in roles)))).ids
    second = _template_process(process)
    assert second != first
    process.kill()
    process.wait(5)
    await _until(lambda: _state(second) == "Z")


def _template_process(parent: subprocess.Popen[str]) -> int:
    (child,) = _template_processes(parent)
    return child


def _template_processes(parent: subprocess.Popen[str]) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{parent.pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [child for child in children if _state(child) != "Z"]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (another process tells nobody)
            await asyncio.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"
