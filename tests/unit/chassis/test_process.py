"""A process's life from outside: ready, frozen, drained, refused."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemesh.v1 import engine_pb2, engine_pb2_grpc, gateway_pb2, gateway_pb2_grpc
from services.chassis.channels import open_channel
from services.chassis.settings import ServiceSettings
from services.chassis.stream import MessageStream, StreamTiming

FAST = StreamTiming(heartbeat_s=0.1, silence_s=0.8)
SCRIPT = Path(__file__).with_name("echo_service.py")
ROOT = Path(__file__).parents[3]
STATES = health_pb2.HealthCheckResponse


class Echo:
    """One started process; `address` is known once it is ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.address = ""

    async def read_until(self, word: str) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(15):
            while line := (await self.process.stderr.readline()).decode().rstrip():
                self.lines.append(line)
                if word in line:
                    return line
        raise AssertionError(f"no {word!r} in {self.lines}")

    async def wait_ready(self) -> None:
        self.address = (await self.read_until("READY ")).split()[2]

    async def exit_code(self) -> int:
        assert self.process.stderr is not None
        async with asyncio.timeout(15):
            rest = await self.process.stderr.read()
            self.lines += rest.decode().splitlines()
            return await self.process.wait()


StartEcho = Callable[..., Awaitable[Echo]]


@pytest.fixture
async def start_echo() -> AsyncIterator[StartEcho]:
    started: list[Echo] = []

    async def start_echo(*flags: str) -> Echo:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            "--metrics-listen=",
            *flags,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        started.append(Echo(process))
        return started[-1]

    yield start_echo
    for echo in started:
        if echo.process.returncode is None:
            echo.process.kill()
            await echo.process.wait()


async def _check(channel: grpc.aio.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)).status)


def _channel(address: str) -> grpc.aio.Channel:
    return open_channel(address, settings=ServiceSettings())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_not_serving_until_every_check_holds(start_echo: StartEcho) -> None:
    port = _free_port()
    echo = await start_echo(f"--listen=127.0.0.1:{port}", "--is-ready-on-signal")
    channel = _channel(f"127.0.0.1:{port}")
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    assert (await watch.read()).status == STATES.NOT_SERVING
    assert await _check(channel, "pagemesh.v1.EngineService") == STATES.NOT_SERVING
    echo.process.send_signal(signal.SIGUSR1)
    assert (await watch.read()).status == STATES.SERVING
    for name in ("", "pagemesh.v1.EngineService", "pagemesh.v1.GatewayService"):
        assert await _check(channel, name) == STATES.SERVING
    assert await _check(channel, "model/smollm2") == STATES.NOT_SERVING, (
        "a model does not take the process down"
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _check(channel, "model/other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await echo.wait_ready()
    assert echo.address == f"127.0.0.1:{port}"
    await channel.close()
    echo.process.terminate()
    assert await echo.exit_code() == 0
    assert len([line for line in echo.lines if line.startswith("READY ")]) == 1


async def test_drain_flips_health_first_finishes_calls_and_exits_0(start_echo: StartEcho) -> None:
    echo = await start_echo("--drain-work-s=0.3")
    await echo.wait_ready()
    channel = _channel(echo.address)
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == STATES.SERVING
    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
    waiting = asyncio.ensure_future(stub.CountTokens(gateway_pb2.CountTokensRequest(model="wait")))
    await stub.CountTokens(gateway_pb2.CountTokensRequest())
    echo.process.terminate()
    assert (await watch.read()).status == STATES.NOT_SERVING
    assert (await waiting).num_tokens == 1
    assert await echo.exit_code() == 0
    assert "drained" in echo.lines
    await channel.close()


async def test_what_a_ready_process_has_is_not_collected_again(start_echo: StartEcho) -> None:
    echo = await start_echo()
    await echo.wait_ready()
    async with grpc.aio.insecure_channel(echo.address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        request = gateway_pb2.CountTokensRequest(model="frozen objects")
        assert (await stub.CountTokens(request)).num_tokens > 10_000


async def test_drain_is_bounded(start_echo: StartEcho) -> None:
    echo = await start_echo("--drain-work-s=60", "--drain-s=0.3")
    await echo.wait_ready()
    echo.process.terminate()
    assert await echo.exit_code() == 0
    assert "drained" not in echo.lines


async def test_second_signal_ends_at_once(start_echo: StartEcho) -> None:
    echo = await start_echo("--drain-work-s=60", "--drain-s=60")
    await echo.wait_ready()
    echo.process.terminate()
    await echo.read_until("draining")
    echo.process.terminate()
    assert await echo.exit_code() == 1


async def test_interrupt_then_terminate_still_drains(start_echo: StartEcho) -> None:
    echo = await start_echo("--drain-work-s=0.2")
    await echo.wait_ready()
    echo.process.send_signal(signal.SIGINT)
    await echo.read_until("draining")
    echo.process.terminate()
    assert await echo.exit_code() == 0


async def test_port_in_use_is_one_line(start_echo: StartEcho) -> None:
    first = await start_echo()
    await first.wait_ready()
    second = await start_echo(f"--listen={first.address}")
    assert await second.exit_code() == 3
    line = f"pagemesh-echo: cannot listen on {first.address}: address already in use; stop what uses it"
    assert len(second.lines) == 1 and second.lines[0].startswith(line)


async def test_expected_failure_and_bad_setting_are_one_line(start_echo: StartEcho) -> None:
    failed = await start_echo("--fail-at-start")
    refused = await start_echo("--drain-s=soon")
    assert await failed.exit_code() == 1
    assert failed.lines == ["pagemesh-echo: /nope: no such folder; name a model folder"]
    assert await refused.exit_code() == 2
    assert len(refused.lines) == 1 and "--drain-s" in refused.lines[0]


async def test_frozen_peer_is_noticed_by_silence_and_its_late_events_drop(
    start_echo: StartEcho,
) -> None:
    echo = await start_echo()
    await echo.wait_ready()
    channel = _channel(echo.address)
    stub = engine_pb2_grpc.EngineServiceStub(channel)
    loop = asyncio.get_running_loop()
    stream: MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse] = MessageStream.over_call(
        stub.Run(), heartbeat=engine_pb2.RunRequest(), timing=FAST
    )
    stream.send(_cancel(1))
    assert (await anext(stream)).ended[0].handle == 1
    echo.process.send_signal(signal.SIGSTOP)
    frozen_s = loop.time()
    for handle in range(2, 50):
        stream.send(_cancel(handle))
    reason = await stream.wait_closed()
    assert "silent" in reason
    assert loop.time() - frozen_s < FAST.silence_s + 0.5
    echo.process.send_signal(signal.SIGCONT)
    info = await stub.GetEngineInfo(engine_pb2.GetEngineInfoRequest(), timeout=5, wait_for_ready=True)
    assert [message async for message in stream] == [], info
    again: MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse] = MessageStream.over_call(
        stub.Run(), heartbeat=engine_pb2.RunRequest(), timing=FAST
    )
    again.send(_cancel(100))
    assert (await anext(again)).ended[0].handle == 100, "a new call sees nothing of the old one"
    again.close()
    await again.wait_closed()
    await channel.close()


async def test_killed_peer_is_noticed_at_once(start_echo: StartEcho) -> None:
    echo = await start_echo()
    await echo.wait_ready()
    async with _channel(echo.address) as channel:
        stream: MessageStream[engine_pb2.RunRequest, engine_pb2.RunResponse] = MessageStream.over_call(
            engine_pb2_grpc.EngineServiceStub(channel).Run(), heartbeat=engine_pb2.RunRequest()
        )
        stream.send(_cancel(1))
        await anext(stream)
        echo.process.kill()
        async with asyncio.timeout(1):
            assert "UNAVAILABLE" in await stream.wait_closed()


def _cancel(handle: int) -> engine_pb2.RunRequest:
    return engine_pb2.RunRequest(cancel=[engine_pb2.Cancel(handle=handle)])
