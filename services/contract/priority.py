"""Classes of waiting work, first served first; the numbers of generation.proto's Priority."""

from enum import IntEnum

from services.contract.errors import invalid_field


class Priority(IntEnum):
    """A lower number may take a slot from a higher one."""

    REALTIME = 1
    INTERACTIVE = 2
    BATCH = 3


def priority_of(proto_value: int) -> Priority:
    """Unspecified (0) is INTERACTIVE. Raises MeshError for a number that is no class."""
    if proto_value == 0:
        return Priority.INTERACTIVE
    try:
        return Priority(proto_value)
    except ValueError:
        raise invalid_field("priority", f"priority is 0..3; given {proto_value}") from None
