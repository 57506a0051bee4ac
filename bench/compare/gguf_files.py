"""The default model as GGUF, which two peers read: as published, and requantized by llama.cpp's tool."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.compare.llamacpp import library_path

PUBLISHED = "Q4_1"
MADE = ("Q4_0", "Q8_0", "BF16")


def gguf_files(
    model: Path, folder: Path, llamacpp: Path | None, report: Callable[[str], None]
) -> dict[str, Path]:
    """Files by format: the one in the model's folder, and those that are made of it once.

    Only the first where llama.cpp's quantizer is not there.
    """
    (published,) = model.glob("*.gguf")
    files = {PUBLISHED: published}
    quantizer = llamacpp / "llama-quantize" if llamacpp else None
    if quantizer is None or not quantizer.exists():
        report(f"no llama-quantize: formats {', '.join(MADE)} are left out")
        return files
    folder.mkdir(parents=True, exist_ok=True)
    for weights in MADE:
        files[weights] = folder / f"smollm2.{weights}.gguf"
        if not files[weights].exists():
            _requantize(quantizer, published, files[weights], weights)
    return files


def _requantize(quantizer: Path, source: Path, target: Path, weights: str) -> None:
    draft = target.with_suffix(".draft")
    command = [str(quantizer), "--allow-requantize", str(source), str(draft), weights]
    subprocess.run(command, check=True, capture_output=True, env=library_path(quantizer.parent))
    draft.rename(target)
