"""What a stranger sees with a general tool and no schema: services, answers, errors, by reflection."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from pagemesh.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.contract.errors import Reason
from services.contract.status import from_rpc_error
from tests.support.baseline import Baseline
from tests.support.mesh import Mesh

BUF = Path(sys.executable).parent / "buf"
PACKAGE = "pagemesh.v1"
SERVICES = {"gateway": "Gateway", "tokenizer": "Tokenizer", "scheduler": "Scheduler", "engine": "Engine"}
every_service = pytest.mark.parametrize("service", SERVICES)
GRPC_CODE_BITS = 3
"""The tool's exit code is the status code, shifted by so many bits."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(engines=1) as running:
        yield running


@pytest.fixture(autouse=True)
def at_rest(mesh: Mesh) -> Iterator[None]:
    baseline = Baseline(mesh)
    yield
    baseline.check()


def name_of(service: str) -> str:
    return f"{PACKAGE}.{SERVICES[service]}Service"


def address(mesh: Mesh, service: str) -> str:
    return mesh.address(f"{service}-0")


@dataclass(frozen=True, slots=True)
class Called:
    """How one use of the tool ended."""

    exit_code: int
    output: str
    errors: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The answers, in order."""
        found, rest = [], self.output.strip()
        decoder = json.JSONDecoder()
        while rest:
            message, end = decoder.raw_decode(rest)
            found.append(message)
            rest = rest[end:].lstrip()
        return found

    @property
    def reason(self) -> str:
        """Of the ErrorInfo in the status' details."""
        info = error_details_pb2.ErrorInfo.FromString(self.details["google.rpc.ErrorInfo"])
        assert info.domain == "pagemesh"
        return str(info.reason)

    @property
    def details(self) -> dict[str, bytes]:
        """Of the status, by the names of their types."""
        details = json.loads(self.errors)["details"]
        return {detail["type"]: base64.b64decode(detail["value"] + "==") for detail in details}


def buf_curl(target: str, *flags: str, **request: Any) -> Called:
    """Knows nothing but the address: what it needs of the schema it asks for by reflection."""
    command = [str(BUF), "curl", "--http2-prior-knowledge", "--protocol", "grpc", f"http://{target}", *flags]
    data = [] if flags else ["--data", json.dumps(request)]
    done = subprocess.run(
        [*command, *data], capture_output=True, text=True, timeout=60, check=False, cwd=BUF.parent
    )
    return Called(done.returncode, done.stdout, done.stderr)


def call(mesh: Mesh, service: str, method: str, **request: Any) -> Called:
    return buf_curl(f"{address(mesh, service)}/{name_of(service)}/{method}", **request)


def failed(called: Called, code: grpc.StatusCode) -> str:
    """The reason it gives."""
    assert called.exit_code == code.value[0] << GRPC_CODE_BITS, called
    assert "Traceback" not in called.errors
    return called.reason


@every_service
def test_reflection_lists_the_service_and_its_methods(mesh: Mesh, service: str) -> None:
    listed = buf_curl(address(mesh, service), "--list-services").output.split()
    assert {name_of(service), "grpc.health.v1.Health"} <= set(listed)
    assert not [name for name in listed if name.startswith(PACKAGE) and name != name_of(service)]
    methods = buf_curl(address(mesh, service), "--list-methods").output.split()
    assert len([method for method in methods if method.startswith(name_of(service))]) >= 3


@every_service
def test_health_answers_for_the_process_its_service_and_its_model(mesh: Mesh, service: str) -> None:
    check = f"{address(mesh, service)}/grpc.health.v1.Health/Check"
    models = ["model/smollm2"] if service in {"tokenizer", "engine"} else []
    for asked in ("", name_of(service), *models):
        assert buf_curl(check, service=asked).messages == [{"status": "SERVING"}], asked
    unknown = buf_curl(check, service="pagemesh.v1.NoService")
    assert unknown.exit_code == grpc.StatusCode.NOT_FOUND.value[0] << GRPC_CODE_BITS


def test_the_gateway_lists_its_models(mesh: Mesh) -> None:
    (answer,) = call(mesh, "gateway", "ListModels").messages
    (model,) = answer["models"]
    assert (model["name"], model["numEngines"], model["vocabSize"]) == ("smollm2", 1, 49_152)


def test_the_gateway_streams_an_answer(mesh: Mesh) -> None:
    sampling = {"temperature": 0, "ignoreEos": True}
    called = call(mesh, "gateway", "Generate", text="Once upon a time", maxTokens=5, sampling=sampling)
    assert called.exit_code == 0, called.errors
    events = called.messages
    assert [int(event.get("seqId", 0)) for event in events] == list(range(len(events)))
    assert "started" in events[0] and "complete" in events[-1]
    tokens = [event["token"] for event in events[1:-1]]
    assert sum(len(token["ids"]) for token in tokens) == 5
    assert "".join(token.get("text", "") for token in tokens)
    usage = events[-1]["complete"]["usage"]
    assert (usage["promptTokens"], usage["completionTokens"]) == (
        events[0]["started"]["numPromptTokens"],
        "5",
    )


def test_errors_have_a_reason_on_unary_calls_and_streams(mesh: Mesh) -> None:
    invalid, absent = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    empty = call(mesh, "gateway", "Generate", text="")
    assert failed(empty, invalid) == "INVALID_FIELD"
    assert {"google.rpc.BadRequest", "pagemesh.v1.Receipt"} <= empty.details.keys()
    assert failed(call(mesh, "gateway", "CountTokens", text="a", model="no"), absent) == "UNKNOWN_MODEL"
    assert failed(call(mesh, "tokenizer", "Encode", text=""), invalid) == "INVALID_FIELD"
    assert failed(call(mesh, "scheduler", "Explain", enqueue={}), invalid) == "INVALID_FIELD"


@every_service
async def test_bytes_of_no_message_are_answered_with_a_reason(mesh: Mesh, service: str) -> None:
    methods = {
        "gateway": "ListModels",
        "tokenizer": "GetTokenizerInfo",
        "scheduler": "GetQueueState",
        "engine": "GetEngineInfo",
    }
    async with grpc.aio.insecure_channel(address(mesh, service)) as channel:
        raw = channel.unary_unary(f"/{name_of(service)}/{methods[service]}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(b"\x0a\xff\xff", timeout=10)
    assert from_rpc_error(caught.value).reason is Reason.UNDECODABLE


async def test_a_stream_without_its_hello_is_refused_with_a_reason(mesh: Mesh) -> None:
    async with grpc.aio.insecure_channel(address(mesh, "scheduler")) as channel:
        first = scheduler_pb2.PlaceRequest(withdraw=[scheduler_pb2.Withdraw(handle=1)])
        place = scheduler_pb2_grpc.SchedulerServiceStub(channel).Place(iter([first]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [_ async for _ in place]
    assert from_rpc_error(caught.value).reason is Reason.INVALID_FIELD
