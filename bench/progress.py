"""What a long measurement says of itself while it runs, apart from its result."""

import sys


def say(line: str) -> None:
    """On standard error, at once."""
    print(line, file=sys.stderr, flush=True)
