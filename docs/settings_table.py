"""Writes the README's settings from what every service prints with --print-settings.

python docs/settings_table.py         rewrites the README
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
SERVICES = ("gateway", "tokenizer", "scheduler", "engine")
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"

_LINE = re.compile(r"(?P<name>\w+) = .*?  # (?P<sentence>.*); default (?P<default>.*)")

Settings = dict[str, tuple[str, str]]
"""Sentence and default by name."""


def settings_of(service: str) -> Settings:
    """What the service says of its settings."""
    command = [sys.executable, "-m", f"services.{service}", "--print-settings"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={}).stdout
    found = [_LINE.fullmatch(line) for line in printed.splitlines()]
    return {match["name"]: (match["sentence"], match["default"]) for match in found if match}


def section() -> str:
    """Settings that all services share first, then each one's own."""
    by_service = {service: settings_of(service) for service in SERVICES}
    shared = {
        name: (sentence, default)
        for name, (sentence, default) in by_service["gateway"].items()
        if name != "listen" and all(name in settings for settings in by_service.values())
    }
    parts = [_table("Every service", shared)]
    for service, settings in by_service.items():
        own = {name: entry for name, entry in settings.items() if name not in shared}
        parts.append(_table(service.capitalize(), own))
    return "\n\n".join(parts)


def with_section(readme: str, text: str) -> str:
    """The README with the text between its marks."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


def _table(title: str, settings: Settings) -> str:
    rows = [
        f"| `{name}` | {_escaped(_shown(name, default))} | {_escaped(sentence)} |"
        for name, (sentence, default) in settings.items()
    ]
    return "\n".join([f"**{title}**", "", "| setting | default | what it is |", "|---|---|---|", *rows])


def _shown(name: str, default: str) -> str:
    if default in ("(empty)", "(unset)"):
        return ""
    # A path into the checkout is shown from its root, so that the table is the same on every machine.
    return f"`{default.replace(f'{ROOT}/', '')}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    README.write_text(with_section(README.read_text(), section()))
