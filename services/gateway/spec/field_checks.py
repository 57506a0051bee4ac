"""Checks of fields that several messages share; each gives back what it checked or raises INVALID_FIELD."""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

from services.contract.errors import invalid_field

MAX_NAME_BYTES = 128

Choice = TypeVar("Choice", bound=IntEnum)


def check_name(name: str, field: str, *, is_required: bool = False) -> str:
    """An id or name: at most 128 bytes, no NUL."""
    if is_required and not name:
        raise invalid_field(field, f"{field} is missing")
    num_bytes = len(name.encode())
    if num_bytes > MAX_NAME_BYTES:
        raise invalid_field(field, f"{field} has at most {MAX_NAME_BYTES} bytes; given {num_bytes}")
    if "\0" in name:
        raise invalid_field(field, f"{field} has no NUL")
    return name


def check_ids(ids: Sequence[int], field: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids, all of the vocabulary; the field of a bad one carries its index."""
    checked = tuple(ids)
    if checked and not (min(checked) >= 0 and max(checked) < vocab_size):
        index = next(i for i, token_id in enumerate(checked) if not 0 <= token_id < vocab_size)
        check_id(checked[index], f"{field}[{index}]", vocab_size)
    return checked


def check_id(token_id: int, field: str, vocab_size: int) -> int:
    """One token id of the vocabulary."""
    if not 0 <= token_id < vocab_size:
        raise invalid_field(field, f"a token id is 0..{vocab_size - 1}; given {token_id}")
    return token_id


def check_number(
    number: float,
    field: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """A finite number within bounds."""
    if not (math.isfinite(number) and at_least <= number <= at_most and number > above):
        low = f"at least {at_least:g}" if above == -math.inf else f"above {above:g}"
        high = "" if at_most == math.inf else f" and at most {at_most:g}"
        raise invalid_field(field, f"a number {low}{high} is needed; given {number:g}")
    return number


def choose(kind: type[Choice], number: int, field: str, default: Choice | None = None) -> Choice:
    """An enum's member by number; 0 is the default, if there is one."""
    if number == 0 and default is not None:
        return default
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{member.value}" for member in kind)
        raise invalid_field(field, f"one of {known} is needed; given {number}") from None
