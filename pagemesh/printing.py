"""What the command line shows: text as it comes, tables at the end, or JSON lines."""

import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pagemesh.catalog import Model
from pagemesh.events import Complete, Event, Receipt, Resumed, Started, TokenChunk
from pagemesh.health import ProcessHealth, Status


def complain(message: str) -> None:
    """One line on standard error."""
    print(f"pagemesh: {' '.join(message.split())}", file=sys.stderr)


def print_json(row: Event | Model | ProcessHealth) -> None:
    """One JSON object on one line; an event names its type."""
    fields = dataclasses.asdict(row)
    if isinstance(row, Started | Resumed | TokenChunk | Complete):
        fields = {"type": _TYPES[type(row)], **fields}
    print(json.dumps(fields, ensure_ascii=False), flush=True)


_TYPES = {Started: "started", Resumed: "resumed", TokenChunk: "token", Complete: "complete"}


class StreamPrinter:
    """Writes the first choice's text as it comes, and the other choices whole at the end."""

    def __init__(self, with_receipt: bool) -> None:
        self._with_receipt = with_receipt
        self._others: dict[int, str] = {}

    def show(self, event: Event) -> None:
        match event:
            case TokenChunk(choice=0, text=text):
                _write(text)
            case TokenChunk(choice=choice, text=text):
                self._others[choice] = self._others.get(choice, "") + text
            case Complete():
                self._finish(event)
            case Started() | Resumed():
                pass

    def _finish(self, event: Complete) -> None:
        for result in event.choices:
            head = "" if result.choice == 0 else f"[{result.choice}] "
            _write(f"{head}{self._others.get(result.choice, '')}{result.final_text}\n")
        if self._with_receipt:
            Console(stderr=True).print(receipt_table(event.receipt))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def receipt_table(receipt: Receipt) -> Table:
    """The account of one request."""
    table = Table(title="receipt", show_header=False, title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in dataclasses.asdict(receipt.hops).items():
        table.add_row(f"  {name.removesuffix('_ms')}", f"{value:.1f} ms")
    table.add_row("elapsed", f"{receipt.elapsed_ms:.1f} ms", end_section=True)
    table.add_row("time to first token", f"{receipt.ttft_ms:.1f} ms")
    for name, value in _facts(receipt).items():
        table.add_row(name, value)
    return table


def _facts(receipt: Receipt) -> dict[str, str]:
    facts = {
        field.name.replace("_", " "): getattr(receipt, field.name)
        for field in dataclasses.fields(receipt)
        if field.name not in ("hops", "elapsed_ms", "ttft_ms")
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def print_models(models: Sequence[Model], as_json: bool) -> None:
    if as_json:
        for model in models:
            print_json(model)
        return
    table = Table("model", "engines", "max tokens", "max choices", "vocabulary", "revision")
    for model in models:
        table.add_row(
            model.name,
            str(model.num_engines),
            str(model.max_model_len),
            str(model.max_choices),
            str(model.vocab_size),
            model.revision[:16],
        )
    Console().print(table)


def print_health(rows: Sequence[ProcessHealth], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
        return
    table = Table("process", "address", "status", "")
    for row in rows:
        colour = "green" if row.status is Status.SERVING else "red"
        table.add_row(row.name, row.address, f"[{colour}]{row.status}[/]", row.detail)
    Console().print(table)
