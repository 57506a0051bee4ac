"""The script of the scripted executor: which ids to force for which prompt, how fast, and where to fail.

Re-read when the file changes. Knows no sequences and draws nothing.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ScriptError(Exception):
    """The file is not a script. One line: path, cause."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one prompt gets."""

    prompt_ids: tuple[int, ...] | None = None
    """None matches any prompt."""
    output_ids: tuple[int, ...] = ()
    """Forced; after them the sampler goes on."""
    ids_per_step: int = 1
    step_ms: float = 0.0
    nan_at: int | None = None
    """Output index at which the logits are NaN."""
    raise_at: int | None = None
    """Output index at which the step raises."""


@dataclass(frozen=True, slots=True)
class Script:
    """Limits to declare, and parts; the first that matches is taken."""

    vocab_size: int = 49152
    max_model_len: int = 65536
    row_invariant: bool = True
    model_revision: str = ""
    """Empty is the executor's own."""
    max_ids_per_step: int = 1
    """Declared once, at load; parts that ask for more get so many."""
    step_ms: float = 0.0
    window: int | None = None
    """Positions that a position sees, itself included, at least 2."""
    parts: tuple[Part, ...] = field(default=())

    def part_for(self, prompt_ids: tuple[int, ...]) -> Part:
        """The first part whose prompt is this one or any."""
        matching = (part for part in self.parts if part.prompt_ids is None or part.prompt_ids == prompt_ids)
        return next(matching, Part(ids_per_step=1, step_ms=self.step_ms))


def read_script(path: Path) -> Script:
    """Raises ScriptError."""
    try:
        text = json.loads(path.read_text())
        return _script(text)
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ScriptError(f"{path}: not a script: {error}") from error


def _script(text: dict[str, Any]) -> Script:
    default_ids, default_ms = int(text.get("ids_per_step", 1)), float(text.get("step_ms", 0))
    parts = tuple(_part(part, default_ids, default_ms) for part in text.get("scripts", ()))
    return Script(
        vocab_size=int(text.get("vocab_size", 49152)),
        max_model_len=int(text.get("max_model_len", 65536)),
        row_invariant=bool(text.get("row_invariant", True)),
        model_revision=str(text.get("model_revision", "")),
        max_ids_per_step=max(
            [int(text.get("max_ids_per_step", 1)), default_ids, *(part.ids_per_step for part in parts)]
        ),
        step_ms=default_ms,
        window=text.get("window"),
        parts=parts,
    )


def _part(part: dict[str, Any], ids_per_step: int, step_ms: float) -> Part:
    prompt = part.get("prompt_ids")
    return Part(
        prompt_ids=None if prompt is None else tuple(map(int, prompt)),
        output_ids=tuple(map(int, part.get("output_ids", ()))),
        ids_per_step=int(part.get("ids_per_step", ids_per_step)),
        step_ms=float(part.get("step_ms", step_ms)),
        nan_at=part.get("nan_at"),
        raise_at=part.get("raise_at"),
    )


class ScriptFile:
    """The script as the file stands now."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._changed_ns = -1
        self._script = Script()

    def read(self) -> Script:
        """Looks at the file's time first. Raises ScriptError."""
        if self._path is None:
            return self._script
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError as error:
            raise ScriptError(f"{self._path}: {error.strerror}") from error
        if changed_ns != self._changed_ns:
            self._script = read_script(self._path)
            self._changed_ns = changed_ns
        return self._script
