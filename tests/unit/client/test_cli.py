"""The command line against a gateway made of scripts."""

import json
import subprocess
import sys

import grpc
import pytest
from google.rpc import error_details_pb2

from tests.support.fake_gateway import break_after, complete, error_info, play, started, token

WHOLE = (started(), token(1, 0, "Par"), token(2, 1, "is"), complete(3))


def pagemesh(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from pagemesh.cli import main; main()", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_generate_writes_the_text(gateway):
    gateway.scripts = [play(*WHOLE)]
    arguments = (
        "--system",
        "be brief",
        "--max-tokens",
        "9",
        "--temperature",
        "0",
        "--stop",
        "x",
        "--receipt",
    )
    done = pagemesh("generate", "capital?", "-g", gateway.address, *arguments, "--priority", "batch")
    assert (done.returncode, done.stdout) == (0, "Paris\n")
    assert "same_tokens" in done.stderr and "engine-1" in done.stderr
    request = gateway.requests[0]
    assert [segment.content for segment in request.conversation.segments] == ["be brief", "capital?"]
    assert (request.max_tokens, request.priority, list(request.stop.texts)) == (9, 3, ["x"])


def test_generate_as_json_is_one_event_a_line(gateway):
    gateway.scripts = [play(*WHOLE)]
    done = pagemesh("generate", "-", "--raw", "-g", gateway.address, "--json", typed="from a pipe")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in events] == ["started", "token", "token", "complete"]
    assert events[3]["receipt"]["moves"] == 1
    assert gateway.requests[0].text == "from a pipe"


def test_other_choices_follow_whole(gateway):
    gateway.scripts = [
        play(started(), token(1, 0, "a"), token(2, 0, "b", choice=1), token(3, 1, "c"), complete(4))
    ]
    last = gateway.scripts[0]

    def two_choices(request, context):
        for response in last(request, context):
            if response.WhichOneof("event") == "complete":
                response.complete.choices.add(choice=1, finish_reason=2)
            yield response

    gateway.scripts = [two_choices]
    assert pagemesh("generate", "hi", "-n", "2", "-g", gateway.address).stdout == "ac\n[1] b\n"


def test_chat_reads_turns_from_a_pipe_and_erases_the_session(gateway):
    gateway.scripts = [play(*WHOLE), play(*WHOLE)]
    done = pagemesh("chat", "-g", gateway.address, "--user", "ada", typed="one?\ntwo?\n")
    assert (done.returncode, done.stdout) == (0, "Paris\nParis\n")
    assert [request.session.user_id for request in gateway.requests] == ["ada", "ada"]
    assert gateway.released == ["session of ada"]


def test_models_as_a_table_and_as_json(gateway):
    assert "smollm2" in pagemesh("models", "-g", gateway.address).stdout
    (model,) = map(json.loads, pagemesh("models", "-g", gateway.address, "--json").stdout.splitlines())
    assert model["max_model_len"] == 8192


def test_a_refusal_is_one_line_and_exit_1(gateway):
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p")
    details = (error_info("INVALID_FIELD"), error_details_pb2.BadRequest(field_violations=[violation]))
    gateway.scripts = [break_after(code=grpc.StatusCode.INVALID_ARGUMENT, details=details)]
    done = pagemesh("generate", "hi", "-g", gateway.address)
    assert done.returncode == 1
    assert done.stderr == "pagemesh: INVALID_ARGUMENT/INVALID_FIELD: it broke (field sampling.top_p)\n"


def test_a_gateway_that_nobody_runs_is_one_line_and_exit_3():
    done = pagemesh("models", "-g", "127.0.0.1:1", "--timeout-s", "1")
    assert done.returncode == 3
    assert done.stderr.startswith("pagemesh: UNAVAILABLE") and done.stderr.count("\n") == 1


def test_health_names_what_does_not_answer(gateway):
    arguments = ("--tokenizer", "127.0.0.1:1", "--scheduler", "127.0.0.1:1", "--json")
    done = pagemesh("health", "-g", gateway.address, *arguments)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in rows] == ["gateway", "tokenizer", "scheduler"]
    assert rows[1]["status"] == "unreachable"
    assert done.returncode == 3 and "no engine" in done.stderr


@pytest.mark.parametrize("arguments", [("generate",), ("generate", "x", "--max-tokens", "0"), ("nonsense",)])
def test_bad_usage_exits_2(arguments):
    assert pagemesh(*arguments).returncode == 2
