"""The rows of the mesh: none of the five standards, each in turn, and each left out of the whole. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from bench.five_standards.row import Row
from bench.generated import table

NAMES = {
    "tokenizer": "T, preheated tokenizer with caches",
    "prompts": "P, structured prompts",
    "cache": "K, KV cache reused across requests",
    "attention": "A, native step and attention",
    "streaming": "S, streamed answer",
}
"""In the order of the ladder."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Which standards are on."""

    tokenizer: bool = False
    """Caches, and the hot queries before READY."""
    prompts: bool = False
    """Segments by the template's plan; off: rendered to one string and encoded whole."""
    cache: bool = False
    """The prefix cache; off: cache policy BYPASS."""
    attention: bool = False
    """The native step; off: the torch executor with its reference attention."""
    streaming: bool = False
    """Tokens as they come; off: the caller waits for the whole."""

    @property
    def mesh(self) -> tuple[bool, bool, bool]:
        """What needs processes of its own; the rest is a request's choice."""
        return self.tokenizer, self.prompts, self.attention


WHOLE = Switches(*(True for _ in fields(Switches)))


def steps() -> Iterator[tuple[str, Switches]]:
    """From none to all, then all but one."""
    switches = Switches()
    yield "the mesh, none of the five", switches
    for name, words in NAMES.items():
        switches = replace(switches, **{name: True})
        yield f"+ {words}", switches
    for name in NAMES:
        yield f"all but {name}", replace(WHOLE, **{name: False})


def lines(rows: Sequence[Row]) -> list[str]:
    """The table, and the totals with and without row 0."""
    whole = next(row for row in rows if row.name.startswith("+ S"))
    body = [_line(row, whole) for row in rows]
    head = ("", "first text, ms", "whole answer, ms", "first token computed, ms", "× all five (whole)")
    starts = [row for row in rows if row.name[:2] in {"0.", "1."}]
    totals = [
        f"From row {row.name} to all five: first text {_change(row.first_ms, whole.first_ms)}, "
        f"whole answer {_change(row.whole_ms, whole.whole_ms)}."
        for row in starts
    ]
    return [*table(head, body), "", *(f"- {total}" for total in totals)]


def _line(row: Row, whole: Row) -> tuple[str, ...]:
    figures = (f"{value:.0f}" for value in (row.first_ms, row.whole_ms, row.computed_ms))
    return row.name, *figures, f"{row.whole_ms / whole.whole_ms:.1f}"


def _change(before: float, after: float) -> str:
    return f"{before:.0f} → {after:.0f} ms (−{1 - after / before:.1%})"
