"""Comma-separated values of flags, as argparse's `type`."""

import argparse
from collections.abc import Callable, Collection


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Refuses what is not known."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(","))
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; there are {', '.join(known)}")
        return found

    return parse
