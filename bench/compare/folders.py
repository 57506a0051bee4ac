"""Where a comparison keeps what it makes, and the document it writes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "compare"
DOCUMENT = ROOT / "docs" / "comparison.md"
