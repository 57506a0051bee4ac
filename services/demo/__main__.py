"""Starts the mesh with two engines, kills the one that answers, and compares with an undisturbed run."""

import signal
import sys
import time

from rich.console import Console

from pagemesh import (
    Answer,
    CachePolicy,
    Client,
    Event,
    ExactnessTier,
    PagemeshError,
    TokenChunk,
    collect,
)
from pagemesh.health import queue_state
from pagemesh.printing import receipt_table
from services.contract.model_folder import ModelFolderError, resolve_model
from services.demo.span_receiver import ReceivedSpan, SpanReceiver
from services.demo.span_tree import draw, roots_of, services_of
from services.supervisor.cores import thread_share
from services.supervisor.plan import MeshShape, ProcessSpec, plan
from services.supervisor.ports import free_ports
from services.supervisor.supervisor import StartError, Supervisor

PROMPT = "Tell a short story about a lighthouse keeper and a fox."
MAX_TOKENS = 80
KILL_AFTER_TOKENS = 40
MIN_GAP = 1e-3
"""Two candidates closer than this could change places between runs, and equal texts would prove nothing."""
NUM_ENGINES = 2
START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 10.0
DRAIN_S = 5.0
SERVICES = {"pagemesh-gateway", "pagemesh-tokenizer", "pagemesh-scheduler", "pagemesh-engine"}


class DemoError(Exception):
    """What was to be shown did not show. One line."""


def main() -> int:
    """Exit code 0 only if the two texts are equal and the trace is whole."""
    console = Console(highlight=False)
    begin_s = time.monotonic()
    try:
        model = resolve_model("smollm2", lambda line: console.print(f"  {line}"))
        with SpanReceiver() as receiver:
            _run(console, receiver, str(model))
    except (DemoError, ModelFolderError, PagemeshError, StartError) as error:
        console.print(f"[bold red]the demo failed:[/] {error}")
        return 1
    console.print(f"[dim]{time.monotonic() - begin_s:.0f} s in all[/]")
    return 0


def _run(console: Console, receiver: SpanReceiver, model: str) -> None:
    specs = _specs(model, receiver.address)
    supervisor = Supervisor(specs, lambda name, line: None)
    begin_s = time.monotonic()
    try:
        supervisor.start()
        console.print(f"[bold]1.[/] starting {', '.join(spec.name for spec in specs)} ...")
        supervisor.wait_ready(START_TIMEOUT_S)
        _await_engines(_address(supervisor, "scheduler-0"))
        console.print(f"   ready after {time.monotonic() - begin_s:.1f} s\n")
        _show(console, supervisor, receiver)
    except (DemoError, PagemeshError, StartError):
        console.print(_last_lines(supervisor), style="dim", markup=False)
        raise
    finally:
        supervisor.stop(DRAIN_S)
    _check_stopped(console, supervisor)


def _await_engines(scheduler: str) -> None:
    """A scheduler is ready with one engine; here the second has a part to play."""
    deadline_s = time.monotonic() + ASK_TIMEOUT_S
    while sum(engine.is_live for engine in queue_state(scheduler, ASK_TIMEOUT_S).engines) < NUM_ENGINES:
        if time.monotonic() > deadline_s:
            raise DemoError(f"the scheduler does not see {NUM_ENGINES} engines")
        time.sleep(0.05)


def _show(console: Console, supervisor: Supervisor, receiver: SpanReceiver) -> None:
    gateway, scheduler = (_address(supervisor, name) for name in ("gateway-0", "scheduler-0"))
    with Client(gateway) as client:
        console.print(f"[bold]2.[/] {PROMPT}\n")
        disturbed = _stream_and_kill(console, client, supervisor, scheduler)
        console.print("\n[bold]3.[/] the same request again, undisturbed and without the prefix cache\n")
        undisturbed = _stream_undisturbed(console, client)
    _compare(console, disturbed, undisturbed)
    console.print(receipt_table(disturbed.receipt))
    _show_spans(console, receiver, disturbed.started.trace_id)


def _stream_and_kill(console: Console, client: Client, supervisor: Supervisor, scheduler: str) -> Answer:
    events: list[Event] = []
    num_tokens, is_killed = 0, False
    for event in client.generate(PROMPT, temperature=0, max_tokens=MAX_TOKENS):
        events.append(event)
        if not isinstance(event, TokenChunk):
            continue
        console.print(event.text, end="", style="green" if is_killed else "", markup=False, soft_wrap=True)
        num_tokens += len(event.ids)
        if num_tokens >= KILL_AFTER_TOKENS and not is_killed:
            is_killed = True
            _kill_answering_engine(console, supervisor, scheduler)
    console.print()
    if not is_killed:
        raise DemoError(f"the answer ended before {KILL_AFTER_TOKENS} tokens")
    return collect(events)


def _kill_answering_engine(console: Console, supervisor: Supervisor, scheduler: str) -> None:
    state = queue_state(scheduler, ASK_TIMEOUT_S)
    running = [engine.engine_id for engine in state.engines if engine.num_running]
    if len(running) != 1:
        raise DemoError(f"one engine should be answering; the scheduler says: {running or 'none'}")
    supervisor.children[running[0]].send(signal.SIGKILL)
    console.print(f"[bold red] ✂ kill -9 {running[0]}[/]", end="")


def _stream_undisturbed(console: Console, client: Client) -> Answer:
    events: list[Event] = []
    stream = client.generate(
        PROMPT, temperature=0, max_tokens=MAX_TOKENS, logprobs=2, cache_policy=CachePolicy.BYPASS
    )
    for event in stream:
        events.append(event)
        if isinstance(event, TokenChunk):
            console.print(event.text, end="", markup=False, soft_wrap=True)
    console.print()
    return collect(events)


def _compare(console: Console, disturbed: Answer, undisturbed: Answer) -> None:
    gap = min(
        entry.top[0].logprob - entry.top[1].logprob
        for choice in undisturbed.choices
        for entry in choice.logprobs
    )
    console.print(f"\nsmallest gap between the two likeliest tokens: {gap:.4f} (needs more than {MIN_GAP})")
    if gap <= MIN_GAP:
        raise DemoError("the prompt has a near tie, so that equal texts would prove nothing")
    if disturbed.receipt.moves < 1:
        raise DemoError("the killed stream did not move to another engine")
    if disturbed.receipt.tier is ExactnessTier.CONTINUED:
        raise DemoError("the receipt does not promise the same tokens after a move")
    if disturbed.choices[0].ids != undisturbed.choices[0].ids or disturbed.text != undisturbed.text:
        raise DemoError("the two answers differ")
    num_ids = len(disturbed.choices[0].ids)
    console.print(f"[bold green]✔ the same {num_ids} tokens, the same text, one engine less[/]\n")


def _show_spans(console: Console, receiver: SpanReceiver, trace_id: str) -> None:
    spans = receiver.wait_for(trace_id, _is_whole)
    console.print(draw(spans))
    missing = SERVICES - services_of(spans)
    if missing:
        raise DemoError(f"no span came from {', '.join(sorted(missing))}")
    if len(roots_of(spans)) != 1:
        raise DemoError(f"the spans form {len(roots_of(spans))} trees")


def _is_whole(spans: list[ReceivedSpan]) -> bool:
    return services_of(spans) >= SERVICES and len(roots_of(spans)) == 1


def _check_stopped(console: Console, supervisor: Supervisor) -> None:
    codes = {name: child.exit_code() for name, child in supervisor.children.items()}
    bad = {name: code for name, code in codes.items() if code not in (0, -signal.SIGKILL)}
    if bad:
        raise DemoError(f"not stopped cleanly: {bad}")
    console.print("\nstopped; every process but the killed one exited with 0")


def _specs(model: str, otlp_endpoint: str) -> list[ProcessSpec]:
    shape = MeshShape(
        engines=NUM_ENGINES,
        overrides={
            "*": {"otlp_endpoint": otlp_endpoint, "drain_s": DRAIN_S},
            "tokenizer": {"model": model},
            "engine": {"model": model, **thread_share(NUM_ENGINES)},
        },
    )
    return plan(shape, free_ports(10))


def _address(supervisor: Supervisor, name: str) -> str:
    return supervisor.children[name].spec.address


def _last_lines(supervisor: Supervisor, num_lines: int = 8) -> str:
    lines: list[str] = []
    for name, child in supervisor.children.items():
        lines += [f"{name}: {line}" for line in list(child.lines)[-num_lines:]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
