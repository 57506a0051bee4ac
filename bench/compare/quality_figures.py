"""What quantization costs each row: the mean KL to fp32, by `make quality` and by the peers' scoring."""

import json
from collections.abc import Mapping
from pathlib import Path

UNKNOWN = "not measured"
_OPTIONS = {
    "pagemesh bf16": "native bfloat16",
    "pagemesh int8": "native int8",
    "pagemesh int4": "native int4",
}
"""What `make quality` calls pagemesh's rows."""


def mean_kls(*files: Path) -> dict[str, float]:
    """By option; files that are not there give nothing. A file holds one JSON object per line, or a list."""
    rows = [row for file in files if file.exists() for row in _rows(file.read_text())]
    return {str(row["option"]): float(row["all"]["mean_kl"]) for row in rows}


def _rows(text: str) -> list[Mapping[str, Mapping[str, float]]]:
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def kl_text(kls: Mapping[str, float], system: str, weights: str, is_quantized: bool) -> str:
    """A peer's option is called after its row: `llama.cpp Q4_0`."""
    row = f"{system} {weights}"
    found = kls.get(_OPTIONS.get(row, row))
    if found is not None:
        return f"{found:.2g}"
    return UNKNOWN if is_quantized else "–"
