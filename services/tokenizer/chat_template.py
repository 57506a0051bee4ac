"""A model's chat template in a sandbox: renders messages, or tells the outline that given roles have.

Runs in the template child only. Knows no tokens; the clock is passed in.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from services.tokenizer.content_probe import Looks, Probe, ProbingEnvironment
from services.tokenizer.outline import Outline, split_at_contents

E = TypeVar("E", bound=ImmutableSandboxedEnvironment)

MAX_REASON_CHARS = 200


class TemplateRefusal(Exception):
    """The template raised: a short reason without its source, and the message it was at."""

    def __init__(self, reason: str, index: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index


class _Raised(TemplateError):
    """The template called raise_exception: its text is meant for a reader."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt."""

    text: str
    is_dated: bool
    """It asked for the date, so the same messages may render differently tomorrow."""


@dataclass(slots=True)
class _Reading:
    """What one rendering has done so far."""

    index: int | None = None
    is_dated: bool = False
    contents: Sequence[str] = field(default_factory=list)


class _Message(dict[str, str]):
    """A message that says when the template reads it."""

    def __init__(self, values: Mapping[str, str], index: int, reading: _Reading) -> None:
        super().__init__(values)
        self._index = index
        self._reading = reading

    def __getitem__(self, key: str) -> str:
        self._reading.index = self._index
        return super().__getitem__(key)


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, variables: Mapping[str, str], now: Callable[[str], str]) -> None:
        """`variables` are the special tokens' texts (bos_token, ...). Raises jinja2.TemplateError."""
        self._variables = dict(variables)
        self._now = now
        self._template = _equip(ImmutableSandboxedEnvironment(**_OPTIONS)).from_string(source)
        self._probing = _equip(ProbingEnvironment(**_OPTIONS))
        self._probed_template = self._probing.from_string(source)

    def render(self, messages: Sequence[Mapping[str, str]]) -> Rendered:
        """The prompt with the generation prompt behind it. Raises TemplateRefusal."""
        reading = _Reading(contents=[message["content"] for message in messages])
        text = self._run(self._template, messages, reading)
        return Rendered(text, reading.is_dated)

    def outline(self, roles: Sequence[str], mark: str) -> Outline:
        """What the template writes around contents. Raises TemplateRefusal."""
        looks = Looks(mark)
        reading = _Reading()
        messages = [
            {"role": role, "content": Probe(looks.sentinel(index), looks)} for index, role in enumerate(roles)
        ]
        with self._probing.watching(looks):
            text = self._run(self._probed_template, messages, reading)
        parts = None if looks.has_looked else split_at_contents(text, mark)
        return Outline(parts, reading.is_dated)

    def _run(self, template: Any, messages: Sequence[Mapping[str, str]], reading: _Reading) -> str:
        def strftime_now(pattern: str) -> str:
            reading.is_dated = True
            return self._now(pattern)

        tracked = [_Message(message, index, reading) for index, message in enumerate(messages)]
        try:
            text: str = template.render(
                messages=tracked,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                strftime_now=strftime_now,
                **self._variables,
            )
        except _Raised as error:
            raise TemplateRefusal(_reason(error, reading), reading.index) from error
        except Exception as error:
            # Whatever a template does wrong is a refusal; its own words could quote source or contents.
            raise TemplateRefusal("it failed on this message", reading.index) from error
        return text


def _reason(error: _Raised, reading: _Reading) -> str:
    text = " ".join(str(error.message).split())[:MAX_REASON_CHARS]
    quotes_content = any(len(content) > 3 and content in text for content in reading.contents)
    return "it raised an error that quotes a content" if quotes_content else text


class _Generation(Extension):
    """`{% generation %}` marks answers for training; here it only shows its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _SafeNamespace(Namespace):
    """A namespace whose attributes cannot reach the interpreter's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be an attribute's name
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError("private names are not allowed in a namespace")


_OPTIONS: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "extensions": [_Generation, loopcontrols],
}


def _equip(environment: E) -> E:
    """The names that templates on model hubs rely on (as transformers gives them)."""

    def raise_exception(message: str) -> None:
        raise _Raised(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["namespace"] = _SafeNamespace
    return environment
