"""The command line: `pagemesh generate`, `chat`, `models`, `health`, `up`, `bench`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from pagemesh import printing
from pagemesh.client import Client, EventStream, Session
from pagemesh.errors import PagemeshError
from pagemesh.gateways import DEFAULT_ADDRESS
from pagemesh.health import Status, check_mesh
from pagemesh.request import Options, Priority, Prompt, RawText, Role, Segment

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 3
EXIT_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Streams answers from a gateway; runs a mesh.",
)


class PriorityName(StrEnum):
    """Class of a request."""

    REALTIME = "realtime"
    INTERACTIVE = "interactive"
    BATCH = "batch"


Gateways = Annotated[
    list[str],
    typer.Option("--gateway", "-g", envvar="PAGEMESH_GATEWAYS", help="host:port; several survive one's end"),
]
ApiKey = Annotated[str | None, typer.Option(envvar="PAGEMESH_API_KEY", help="Better set in the environment.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per event or row.")]
Model = Annotated[str | None, typer.Option(help="Served name; the only model by default.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens at most.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Of the draw.")]
System = Annotated[str | None, typer.Option(help="Instructions in front of the conversation.")]
Timeout = Annotated[float, typer.Option(help="Seconds for each call.")]


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The user's turn; - reads it from standard input.")],
    gateway: Gateways = [DEFAULT_ADDRESS],
    api_key: ApiKey = None,
    model: Model = None,
    system: System = None,
    raw: Annotated[bool, typer.Option(help="Encode the prompt as it stands: no chat template.")] = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus.")] = None,
    seed: Seed = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the answer; repeatable.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Choices.")] = None,
    priority: Annotated[PriorityName | None, typer.Option(help="Class.")] = None,
    timeout_s: Timeout = 600.0,
    receipt: Annotated[bool, typer.Option(help="Print the request's account at its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Streams the answer to one prompt."""
    options = _options(
        model=model,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop,
        n=n,
        priority=None if priority is None else Priority[priority.name],
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    with Client(gateway, api_key=api_key) as client:
        stream = client.generate(_prompt(text, system, raw), timeout_s=timeout_s, **options)
        _show(stream, as_json, with_receipt=receipt)


@app.command()
def chat(
    gateway: Gateways = [DEFAULT_ADDRESS],
    api_key: ApiKey = None,
    model: Model = None,
    user: Annotated[str, typer.Option(help="The session's user.")] = "cli",
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    timeout_s: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Talks in a session, one turn per line; an empty line or Ctrl-D ends it, and the history is erased."""
    options = _options(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with Client(gateway, api_key=api_key) as client, client.open_session(user, model=model or "") as session:
        is_first = True
        while line := _read_turn():
            turn = _prompt(line, system if is_first else None, is_raw=False)
            is_first = False
            _say(session, turn, options, timeout_s, as_json)


@app.command()
def models(
    gateway: Gateways = [DEFAULT_ADDRESS],
    api_key: ApiKey = None,
    timeout_s: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Lists the served models."""
    with Client(gateway, api_key=api_key) as client:
        printing.print_models(client.list_models(timeout_s=timeout_s), as_json)


@app.command()
def health(
    gateway: Gateways = [DEFAULT_ADDRESS],
    tokenizer: Annotated[list[str], typer.Option(help="host:port")] = ["127.0.0.1:7610"],
    scheduler: Annotated[list[str], typer.Option(help="host:port; names the engines")] = ["127.0.0.1:7620"],
    timeout_s: Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Asks every process whether it serves. Exits 3 if one does not."""
    rows = check_mesh(gateway, tokenizer, scheduler, timeout_s)
    printing.print_health(rows, as_json)
    has_engine = any(row.name not in ("gateway", "tokenizer", "scheduler") for row in rows)
    if not has_engine:
        printing.complain("no engine is known to a scheduler that answers")
    if not has_engine or any(row.status is not Status.SERVING for row in rows):
        raise typer.Exit(EXIT_UNAVAILABLE)


@app.command()
def up(
    engines: Annotated[int, typer.Option(min=1, help="Engine processes.")] = 2,
    model: Annotated[str, typer.Option(help="smollm2, a folder, a GGUF file, or a hub id.")] = "smollm2",
    executor: Annotated[
        str, typer.Option(help="How engines compute: auto, native, torch or scripted.")
    ] = "auto",
    drain_s: Annotated[float, typer.Option(help="Seconds that running work has at the end.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    otlp_endpoint: Annotated[str, typer.Option(help="host:port of an OTLP collector; empty is off.")] = "",
    base_port: Annotated[
        int, typer.Option(help="The gateway's; the others are 10, 20 and 30 higher.")
    ] = 7600,
) -> None:
    """Runs the whole mesh on this machine until Ctrl-C: tokenizer, scheduler, engines, gateway."""
    _find_checkout("up")
    try:
        from services.supervisor import up as supervisor  # noqa: PLC0415  the client never needs it
    except ModuleNotFoundError as error:
        printing.complain(f"{error}; the services' packages are installed by `make setup`")
        raise typer.Exit(EXIT_FAILED) from None
    options = supervisor.UpOptions(engines, model, executor, drain_s, log_level, otlp_endpoint, base_port)
    raise typer.Exit(supervisor.up(options))


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def bench(context: typer.Context) -> None:
    """Measures a server under load; `pagemesh bench --help` has its own options."""
    _find_checkout("bench")
    try:
        from bench.load.cli import app as load_tool  # noqa: PLC0415  the client never needs it
    except ModuleNotFoundError as error:
        printing.complain(f"{error}; the load tool's packages are the extra pagemesh[bench]")
        raise typer.Exit(EXIT_FAILED) from None
    load_tool(context.args, prog_name="pagemesh bench")


def main() -> None:
    """Entry point: one line per failure, no traceback for what the mesh or the network did."""
    try:
        app(standalone_mode=True)
    except PagemeshError as error:
        printing.complain(str(error))
        sys.exit(EXIT_UNAVAILABLE if error.is_retryable else EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _find_checkout(command: str) -> None:
    """Makes the folders beside this package importable; the wheel has none of them."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / "services" / "supervisor").is_dir():
        printing.complain(
            f"`pagemesh {command}` needs a checkout of the repository; this is only the client package"
        )
        raise typer.Exit(EXIT_FAILED)
    sys.path.insert(0, str(checkout))


def _options(**given: object) -> Options:
    return cast(Options, {name: value for name, value in given.items() if value is not None})


def _prompt(text: str, system: str | None, is_raw: bool) -> Prompt:
    if is_raw:
        return RawText(text)
    turns = [] if system is None else [Segment(Role.SYSTEM, system)]
    return [*turns, Segment(Role.USER, text)]


def _read_turn() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return sys.stdin.readline().strip()


def _say(session: Session, turn: Prompt, options: Options, timeout_s: float, as_json: bool) -> None:
    try:
        _show(session.generate(turn, timeout_s=timeout_s, **options), as_json, with_receipt=False)
    except PagemeshError as error:
        if not sys.stdin.isatty():
            raise
        printing.complain(str(error))  # a person may go on; a script should not


def _show(stream: EventStream, as_json: bool, *, with_receipt: bool) -> None:
    show = printing.print_json if as_json else printing.StreamPrinter(with_receipt).show
    for event in stream:
        show(event)
