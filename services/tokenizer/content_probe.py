"""Finds out whether a template only places contents or looks into them (trims, compares, splits).

A content stands in as a string that remembers every operation but concatenation and output.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

from jinja2.sandbox import ImmutableSandboxedEnvironment

_PLACING_FILTERS = frozenset({"default", "d", "string"})


class Looks:
    """Whether any content of one rendering was looked into."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.has_looked = False

    def sentinel(self, index: int) -> str:
        """The text that stands for content `index`."""
        return f"{self.mark}{index};"

    def note(self, value: object) -> None:
        """A value was operated on."""
        if isinstance(value, str) and self.mark in str.__str__(value):
            self.has_looked = True


class Probe(str):
    """A sentinel that tells when it is looked into."""

    looks: Looks

    def __new__(cls, text: str, looks: Looks) -> "Probe":
        probe = super().__new__(cls, text)
        object.__setattr__(probe, "looks", looks)
        return probe

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "looks").has_looked = True
        return super().__getattribute__(name)

    def __bool__(self) -> bool:
        object.__getattribute__(self, "looks").has_looked = True
        return True

    def __str__(self) -> str:
        return str.__str__(self)

    def __add__(self, other: str) -> "Probe":
        return Probe(str.__add__(self, other), object.__getattribute__(self, "looks"))

    def __radd__(self, other: str) -> "Probe":
        return Probe(str.__add__(other, self), object.__getattribute__(self, "looks"))


def _looking(name: str) -> Callable[..., Any]:
    original = getattr(str, name)

    def method(self: Probe, *args: SupportsIndex | str) -> Any:
        object.__getattribute__(self, "looks").has_looked = True
        return original(self, *args)

    return method


for _name in ("contains", "eq", "ne", "lt", "le", "gt", "ge", "len", "getitem", "iter", "hash", "mod", "mul"):
    setattr(Probe, f"__{_name}__", _looking(f"__{_name}__"))


class ProbingEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which filters and string methods tell what they were used on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._looks: Looks | None = None

    @contextmanager
    def watching(self, looks: Looks) -> Iterator[None]:
        """One rendering."""
        self._looks = looks
        filters = dict(self.filters)
        self.filters.update({name: self._watched(name, function) for name, function in filters.items()})
        try:
            yield
        finally:
            self.filters.update(filters)
            self._looks = None

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Sees methods of joined strings, which are no probes any more."""
        if self._looks is not None:
            self._looks.note(getattr(obj, "__self__", None))
        return super().call(context, obj, *args, **kwargs)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._looks is not None and name not in _PLACING_FILTERS:
                for value in (*args, result):
                    self._looks.note(value)
            return result

        return watched
