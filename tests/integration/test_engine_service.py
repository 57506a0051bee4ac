"""An engine process over real gRPC with the scripted executor: streams, refusals, races, drain, starts."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from pagemesh.v1 import engine_pb2, generation_pb2, scheduler_pb2
from services.supervisor.ports import free_ports
from tests.support.engine_process import WAIT_S, EngineProcess
from tests.support.metrics import scrape
from tests.support.tiny_models import make_tiny_model

PROMPT = list(range(40))


def ticket(info: engine_pb2.EngineInfo, number: int, scheduler: str = "s1") -> scheduler_pb2.Ticket:
    return scheduler_pb2.Ticket(scheduler_boot_id=scheduler, number=number, engine_boot_id=info.boot_id)


async def test_a_stream_of_ids_with_its_account() -> None:
    script = {"scripts": [{"prompt_ids": PROMPT, "output_ids": [5, 6, 7, 8, 9, 10]}]}
    async with EngineProcess(script) as engine, engine.gateway() as gateway:
        info = gateway.info
        assert (info.model, info.block_size, info.vocab_size, info.row_invariant) == ("smollm2", 16, 97, True)
        assert info.tier == generation_pb2.EXACTNESS_TIER_BIT_IDENTICAL and len(info.fingerprint_hash) == 16
        heard = await gateway.wait(gateway.admit(PROMPT, 50, stop_ids=[8]))
        assert heard.ids == [5, 6, 7, 8] and heard.indexes == [0, 1, 2, 3]
        assert heard.ended is not None and heard.ended.reason == engine_pb2.END_REASON_STOP
        assert heard.ended.counts.num_computed_tokens == 40 + 3
        assert heard.progress is not None and heard.progress.num_cached_tokens == 0
        again = await gateway.wait(gateway.admit(PROMPT, 2))
        assert again.ids == [5, 6] and again.progress is not None and again.progress.num_cached_tokens == 32
        resumed = await gateway.wait(gateway.admit([*PROMPT, 5, 6, 7], 5, num_prompt_tokens=40))
        assert resumed.ids == [8, 9] and resumed.indexes == [3, 4]
        finished = await gateway.wait(gateway.admit([*PROMPT, 5], 1, num_prompt_tokens=40))
        assert finished.ids == [] and finished.ended is not None
        assert finished.ended.reason == engine_pb2.END_REASON_LENGTH
        steps = [message.step.step_number for message in gateway.messages if message.HasField("step")]
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("lag", [0, 1])
async def test_many_streams_are_columns_of_one_message_and_equal_what_they_are_alone(lag: int) -> None:
    async with EngineProcess(lag=lag, num_blocks=200) as engine, engine.gateway() as gateway:
        prompts = [[n, *PROMPT] for n in range(16)]
        alone = [(await gateway.wait(gateway.admit(prompt, 20))).ids for prompt in prompts[:4]]
        words = [gateway.words(prompt, 20) for prompt in prompts]
        gateway.stream.send(engine_pb2.RunRequest(admit=[admit for _, admit in words]))
        together = [await gateway.wait(handle) for handle, _ in words]
        assert [heard.ids for heard in together[:4]] == alone
        assert max(len(message.step.handles) for message in gateway.messages) == 16
        asked = gateway.words(PROMPT, 3)
        asked[1].sampling.logprobs = 2
        gateway.stream.send(engine_pb2.RunRequest(admit=[asked[1]]))
        heard = await gateway.wait(asked[0])
        assert [next(entry[0] for entry in entries) for entries in heard.logprobs] == heard.ids
        assert all(len(entries) == 3 for entries in heard.logprobs)
        await engine.wait_idle()


async def test_bad_admits_are_refused_and_good_streams_go_on() -> None:
    script = {"max_model_len": 1024, "step_ms": 2}
    async with EngineProcess(script, num_blocks=33) as engine, engine.gateway() as gateway:
        undisturbed = (await gateway.wait(gateway.admit(PROMPT, 100))).ids
        good = gateway.admit(PROMPT, 100)
        sampling = generation_pb2.SamplingParams
        bad = {
            "ids": {"ids": [1, 97], "num_prompt_tokens": 2},
            "no ids": {"ids": [], "num_prompt_tokens": 0},
            "prompt longer than ids": {"num_prompt_tokens": 41},
            "too long": {"max_output_tokens": 500},
            "no output": {"max_output_tokens": 0},
            "stop ids": {"stop_ids": [2**31 - 1]},
            "tenant": {"identity": engine_pb2.Identity(tenant_key=b"x", request_id="r")},
            "request": {"identity": engine_pb2.Identity(tenant_key=b"x" * 16)},
            "nan": {"sampling": sampling(temperature=float("nan"))},
            "top_p": {"sampling": sampling(top_p=0)},
            "bias id": {"sampling": sampling(logit_bias=[generation_pb2.TokenBias(token_id=-1, bias=1)])},
            "bias": {
                "sampling": sampling(logit_bias=[generation_pb2.TokenBias(token_id=1, bias=float("inf"))])
            },
            "logprobs": {"sampling": sampling(logprobs=21)},
            "priority": {"priority": 9},
            "policy": {"cache_policy": 9},
            "constraint": {"constraint_json": "{}"},
            "retention": {"retention": engine_pb2.Retention(session_key=b"1", ttl_s=1)},
        }
        for name, fields in bad.items():
            heard = await gateway.wait(gateway.admit(**{"ids": PROMPT, **fields}))
            assert heard.refused is not None, name
            assert heard.refused.refusal == engine_pb2.RUN_REFUSAL_INVALID, name
            assert heard.refused.detail and len(heard.refused.detail.encode()) <= 200
        assert (await gateway.wait(good)).ids == undisturbed
        gateway.cancel(12345)
        assert len((await gateway.wait(gateway.admit(PROMPT, 3))).ids) == 3


async def test_tickets_are_named_and_room_is_shared() -> None:
    async with (
        EngineProcess({"step_ms": 5}, max_sequences=4, num_blocks=101) as engine,
        engine.gateway() as gateway,
        engine.scheduler("s1") as first,
    ):
        await first.until(lambda it: it.room() == (4, 1600))
        handle = gateway.admit(PROMPT, 400, ticket=ticket(gateway.info, 7))
        await first.until(lambda it: (7, engine_pb2.TICKET_OUTCOME_ADMITTED) in it.tickets)
        await first.until(lambda it: it.reports[-1].num_running == 1 and it.room()[0] == 3)
        wrong = ticket(gateway.info, 8)
        wrong.engine_boot_id = "gone"
        heard = await gateway.wait(gateway.admit(PROMPT, ticket=wrong))
        assert heard.refused is not None and heard.refused.refusal == engine_pb2.RUN_REFUSAL_WRONG_BOOT
        await first.until(lambda it: (8, engine_pb2.TICKET_OUTCOME_REFUSED) in it.tickets)
        async with engine.scheduler("s2") as second:
            await second.until(lambda it: it.tickets == [] and it.room()[0] == 1)
            await first.until(lambda it: it.room()[0] == 2)
            second.say_waiting(30)
            await second.until(lambda it: it.room()[0] == 3)
            await first.until(lambda it: it.room()[0] == 0)
            first.say_waiting(30)  # now they take turns at all of it
            for _ in range(2):
                await first.until(lambda it: it.room()[0] == 3)
                await second.until(lambda it: it.room()[0] == 3)
        await first.until(lambda it: it.room()[0] == 3)
        async with engine.scheduler("s1") as again:
            await again.until(lambda it: it.tickets == [(7, engine_pb2.TICKET_OUTCOME_ADMITTED)])
        gateway.cancel(handle)
        await first.until(lambda it: (7, engine_pb2.TICKET_OUTCOME_ENDED) in it.tickets)
        heard = await gateway.wait(handle)
        assert heard.ended is not None and heard.ended.reason == engine_pb2.END_REASON_CANCELLED


async def test_a_broken_run_stream_ends_its_sequences_at_once_and_no_others() -> None:
    async with EngineProcess({"step_ms": 10}, max_sequences=3, num_blocks=2000) as engine:
        async with engine.gateway() as other:
            survivor = other.admit(PROMPT, 300)
            async with engine.gateway() as gateway:
                for _ in range(2):
                    gateway.admit(PROMPT, 20_000)
                await gateway.until(1, lambda heard: len(heard.ids) >= 3)
            third = await other.wait(other.admit(PROMPT[:5], 3))
            assert third.refused is None and len(third.ids) == 3
            other.cancel(survivor)
        assert await engine.wait_idle() < 1.0


async def test_metrics_account_for_every_sequence_and_return_to_idle() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with EngineProcess({"step_ms": 2}, metrics_listen=address, num_blocks=101) as engine:
        async with engine.gateway() as gateway:
            await gateway.wait(gateway.admit(PROMPT, 5))
            await gateway.wait(gateway.admit(PROMPT, 5))
            gateway.cancel(gateway.admit(PROMPT, 500))
            await gateway.wait(gateway.admit([], 5))
            for _ in range(5):
                gateway.admit(PROMPT, 1000)
            await gateway.until(9, lambda heard: len(heard.ids) >= 1)
        await engine.wait_idle()
        metrics = await asyncio.to_thread(scrape, address)
        total = metrics.total
        assert total("pagemesh_engine_admitted_total") == total("pagemesh_engine_ended_total") == 8
        assert metrics.value("pagemesh_engine_ended_total", reason="stream") == 5
        assert metrics.value("pagemesh_engine_ended_total", reason="cancelled") == 1
        assert metrics.value("pagemesh_engine_refused_total", reason="invalid") == 1
        assert total("pagemesh_engine_running_sequences") == total("pagemesh_engine_waiting_sequences") == 0
        assert metrics.value("pagemesh_engine_kv_blocks", state="used") == 0
        assert total("pagemesh_engine_kv_blocks") == 100
        assert total("pagemesh_engine_cached_tokens_total") >= 32
        assert total("pagemesh_engine_step_seconds_count") > 0


async def test_a_higher_attempt_on_another_stream_takes_over() -> None:
    identity = engine_pb2.Identity(tenant_key=b"t" * 16, request_id="same")
    async with EngineProcess({"step_ms": 5}) as engine, engine.gateway() as old, engine.gateway() as new:
        first = old.admit(PROMPT, 500, identity=identity)
        await old.until(first, lambda heard: len(heard.ids) >= 3)
        higher = engine_pb2.Attempt(client_attempt=2, gateway_attempt=1)
        second = new.admit(PROMPT, 5, identity=identity, attempt=higher)
        ended = (await old.wait(first)).ended
        assert ended is not None and ended.reason == engine_pb2.END_REASON_CANCELLED
        assert len((await new.wait(second)).ids) == 5
        stale = (await old.wait(old.admit(PROMPT, 5, identity=identity, attempt=higher))).refused
        assert stale is not None and stale.refusal == engine_pb2.RUN_REFUSAL_STALE


@pytest.mark.parametrize("lag", [0, 1])
async def test_a_step_that_raises_returns_its_batch_and_the_engine_goes_on(lag: int) -> None:
    script = {"scripts": [{"prompt_ids": [1, 2, 3], "raise_at": 4}, {"prompt_ids": [4, 5], "nan_at": 2}]}
    async with EngineProcess(script, lag=lag) as engine, engine.gateway() as gateway:
        words = [gateway.words(ids, 30) for ids in ([1, 2, 3], PROMPT)]
        gateway.stream.send(engine_pb2.RunRequest(admit=[admit for _, admit in words]))
        for handle, _ in words:
            returned = (await gateway.wait(handle)).returned
            assert returned is not None and returned.reason == engine_pb2.RETURN_REASON_SUSPECT
        bad = await gateway.wait(gateway.admit([4, 5], 30))
        assert bad.ended is not None and bad.ended.reason == engine_pb2.END_REASON_BAD_LOGITS
        assert len(bad.ids) == 2
        assert len((await gateway.wait(gateway.admit(PROMPT, 30))).ids) == 30


@pytest.mark.parametrize("lag", [0, 1])
async def test_an_executor_beyond_help_ends_the_process_and_every_stream(lag: int) -> None:
    script = {"step_ms": 5, "scripts": [{"prompt_ids": [1, 2, 3], "raise_at": 4}]}
    dying = EngineProcess(
        script, module="tests.support.odd_engine", environment={"ODD_ENGINE": "dying"}, lag=lag
    )
    async with dying as engine, engine.gateway() as gateway, engine.scheduler("s1") as scheduler:
        good = gateway.admit(PROMPT, 10_000)
        await gateway.until(good, lambda heard: len(heard.ids) >= 3)
        bad = gateway.admit([1, 2, 3], 30)
        assert await asyncio.wait_for(engine.process.wait(), WAIT_S) == 1
        async with asyncio.timeout(1):
            await gateway.stream.wait_closed()
            await scheduler.stream.wait_closed()
        for handle in (good, bad):
            heard = gateway.heard[handle]
            assert heard.ended is None, "no false end: the gateway goes on elsewhere"
            reason = engine_pb2.RETURN_REASON_SUSPECT
            assert heard.returned is None or heard.returned.reason == reason
    assert [line for line in engine.log if "DeadExecutorError" in line]


async def test_drain_finishes_what_it_can_and_returns_the_rest() -> None:
    async with EngineProcess({"step_ms": 10}, drain_s=2) as engine:
        async with engine.gateway() as gateway, engine.scheduler("s1") as scheduler:
            short, long = gateway.admit(PROMPT, 60), gateway.admit([1, *PROMPT], 3000)
            await gateway.until(long, lambda heard: len(heard.ids) >= 2)
            engine.terminate()
            await scheduler.until(lambda it: it.reports[-1].is_draining)
            health = health_pb2_grpc.HealthStub(engine.channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service=""))
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            late = (await gateway.wait(gateway.admit(PROMPT, 3))).refused
            assert late is not None and late.refusal == engine_pb2.RUN_REFUSAL_DRAINING
            assert len((await gateway.wait(short)).ids) == 60
            returned = (await gateway.wait(long)).returned
            assert returned is not None and returned.reason == engine_pb2.RETURN_REASON_DRAINING
        assert await asyncio.wait_for(engine.process.wait(), 5) == 0


async def test_health_speaks_for_the_model_and_undecodable_bytes_end_only_their_stream() -> None:
    async with EngineProcess() as engine, engine.gateway() as gateway:
        health = health_pb2_grpc.HealthStub(engine.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="model/smollm2"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = engine.channel.stream_stream("/pagemesh.v1.EngineService/Run")()
        assert await call.read()
        await call.write(b"\xff\xff\xff")
        async with asyncio.timeout(WAIT_S):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert len((await gateway.wait(gateway.admit(PROMPT, 3))).ids) == 3
        assert not [line for line in engine.log if "ExecuteBatchError" in line]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--executor=none"], 1, "executor 'none' is unknown"),
        (["--model=/nope"], 1, "/nope: "),
        (["--executor=scripted", "--script=/nope.json"], 1, "/nope.json: No such file"),
        (["--num-blocks=2"], 2, "num_blocks"),
        (["--max-sequences=0"], 2, "max-sequences"),
        (["--no-such-flag"], 2, "no-such-flag"),
    ],
)
def test_a_bad_start_is_one_line_in_less_than_ten_seconds(flags: list[str], code: int, words: str) -> None:
    command = [sys.executable, "-m", "services.engine", "--listen=127.0.0.1:0", "--metrics-listen=", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert ended.returncode == code, ended.stderr
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1 and words in lines[0], ended.stderr


@pytest.mark.parametrize(
    ("harm", "flags", "words"),
    [
        ("none", ["--num-blocks=2000000000"], r"the KV pool needs \d+ MiB; \d+ MiB are available; give .*"),
        ("none", ["--kv-memory-mib=0"], "kv.memory.mib"),
        ("nan", [], "the model's logits are not finite"),
        ("shape", [], r"has shape \[1, \d+\], config.json says .*; use weights that belong"),
    ],
)
def test_no_room_and_corrupt_weights_are_one_line(
    tmp_path: Path, harm: str, flags: list[str], words: str
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if harm == "nan":
        save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, weights)
    if harm == "shape":
        save_file({name: tensor[:1].clone() for name, tensor in tensors.items()}, weights)
    command = [sys.executable, "-m", "services.engine", "--listen=127.0.0.1:0", "--metrics-listen="]
    command += [f"--model={folder}", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("20")]
    assert ended.returncode != 0 and len(lines) == 1, ended.stderr
    assert re.search(words, lines[0]) and "READY" not in ended.stderr


def test_an_empty_model_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    test_a_bad_start_is_one_line_in_less_than_ten_seconds([f"--model={tmp_path}"], 1, str(tmp_path))


async def test_a_port_in_use_is_refused() -> None:
    async with EngineProcess() as engine:
        flags = [f"--listen={engine.address}", "--executor=scripted"]
        command = [sys.executable, "-m", "services.engine", "--metrics-listen=", *flags]
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=10, check=False
        )
        assert ended.returncode == 3 and engine.address in ended.stderr
