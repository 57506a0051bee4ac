"""Which ids stay when a prompt is over its limit. Applied after encoding; the library's own stays off."""

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class Side(Enum):
    """Where ids go."""

    NONE = "none"
    LEFT = "left"
    RIGHT = "right"


def truncate(items: Sequence[T], limit: int, side: Side, num_prefix: int) -> list[T]:
    """At most `limit` items. From the left, the first `num_prefix` (BOS) are kept, what follows goes."""
    if len(items) <= limit:
        return list(items)
    assert side is not Side.NONE, f"{len(items)} items over {limit}"
    if side is Side.RIGHT or limit <= num_prefix:
        return list(items[:limit])
    return [*items[:num_prefix], *items[len(items) - (limit - num_prefix) :]]
