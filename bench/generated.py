"""Tables in documents that a command writes anew: the lines between two marks."""

from collections.abc import Sequence
from pathlib import Path


def write_between(document: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces what stands between `<!-- name: begin -->` and `<!-- name: end -->`."""
    text = document.read_text()
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    assert found_begin and found_end, f"{document} has no marks for {name}"
    document.write_text("\n".join([head + begin, *lines, "", end + tail]))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown: the first column to the left, the others to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]
