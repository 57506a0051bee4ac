"""A seeded fault: one small edit of one file, and the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` must stand exactly once in the file, so that no refactoring empties the fault unseen."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files or node ids, the likeliest to notice first."""

    def count(self, root: Path) -> int:
        """How often `old` stands in the file; 0 if there is no such file."""
        path = root / self.file
        return path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0

    def apply(self, root: Path) -> str:
        """Puts the fault into the tree; returns the file's text before."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, self.name
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text
