"""A trace's spans as one tree. Pure."""

from collections.abc import Sequence

from rich.tree import Tree

from services.demo.span_receiver import ReceivedSpan


def roots_of(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Spans whose parent is not among them. A whole trace has one."""
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent_id not in known]


def services_of(spans: Sequence[ReceivedSpan]) -> set[str]:
    return {span.service for span in spans}


def draw(spans: Sequence[ReceivedSpan]) -> Tree:
    """One line per span, under its parent, in the order of the starts."""
    tree = Tree("[bold]spans of that request[/]")
    origin_ns = min((span.start_ns for span in spans), default=0)
    for root in roots_of(spans):
        _grow(tree, root, spans, origin_ns)
    return tree


def _grow(branch: Tree, span: ReceivedSpan, spans: Sequence[ReceivedSpan], origin_ns: int) -> None:
    offset_ms = (span.start_ns - origin_ns) / 1e6
    label = f"{span.name}  [cyan]{span.service}[/]  [dim]+{offset_ms:.1f} ms,[/] {span.duration_ms:.1f} ms"
    own = branch.add(label)
    for child in spans:
        if child.parent_id == span.span_id:
            _grow(own, child, spans, origin_ns)
