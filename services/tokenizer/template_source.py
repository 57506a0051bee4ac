"""Where a model folder keeps its chat template and the special tokens' texts that it may use."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template's text and its variables."""

    text: str
    variables: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Over both, hexadecimal."""
        return hashlib.sha256(
            json.dumps([self.text, dict(sorted(self.variables.items()))]).encode()
        ).hexdigest()


def read_template(folder: Path) -> TemplateSource | None:
    """The folder's default template; None if it has none. Raises ValueError, KeyError or OSError."""
    config = _read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    text = file.read_text(encoding="utf-8") if file.exists() else _template_in(config)
    if text is None:
        return None
    tokens = {**_read_json(folder / "special_tokens_map.json"), **config}
    return TemplateSource(text, dict(_special_tokens(tokens)))


def _template_in(config: Mapping[str, Any]) -> str | None:
    value = config.get("chat_template")
    if isinstance(value, list):
        value = next((entry["template"] for entry in value if entry.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _special_tokens(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found.append((name, text))
    return found


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    value = json.loads(file.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return value
