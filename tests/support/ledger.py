"""What the exactness matrix compared, printed at the end of the run."""

from collections.abc import Callable

Ledger = Callable[[str, int, int], None]
"""Takes (what was compared, tokens, ties and partings)."""
