"""Turns a GGUF file into a model folder, once: config, tokenizer, template, bf16 weights, the file itself.

The file stays beside the converted weights, so that 4-bit blocks can be read without a second loss.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from services.contract.cached_folder import make_once
from services.contract.model_folder import ModelFolderError, Report, cache_folder, report_to_stderr

_CONVERSION = 2
"""Raised whenever the converted files would differ, so that an old folder is not mistaken for a new one."""


def fetch_gguf_folder(file: Path, report: Report = report_to_stderr) -> Path:
    """Gives the folder made of the file as it is now, converting it at first use. Raises ModelFolderError."""
    stamp = file.stat()
    key = hashlib.sha256(f"{file.resolve()} {stamp.st_size} {stamp.st_mtime_ns}".encode()).hexdigest()[:8]

    def make(_: Path, target: Path) -> None:
        report(f"{file.name}: converting, once")
        convert(file, target)
        report(f"{file.name}: ready")

    return make_once(folder_for(file.stem, key), make)


def folder_for(name: str, key: str) -> Path:
    """Where the conversion of a file lies, or will; `key` tells files of one name apart."""
    return cache_folder() / "models" / f"{name}-{key}-{_CONVERSION}"


def convert(file: Path, target: Path) -> None:
    """Writes the folder. Imports here: only the first use pays for them. Raises ModelFolderError."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        cause = f"cannot be converted ({str(error).strip().splitlines()[0][:200]})"
        raise ModelFolderError(file, cause, "use a GGUF file of a Llama-family model") from error
    model.save_pretrained(target)
    _restore_digit_split(tokenizer, file)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(target)
    _drop_traces(target / "tokenizer_config.json", ("is_local", "local_files_only"))
    shutil.copyfile(file, target / file.name)


def _restore_digit_split(tokenizer: Any, file: Path) -> None:
    """SmolLM's pre-tokenizer takes every digit alone; transformers keeps only its byte-level half."""
    import gguf  # noqa: PLC0415
    from tokenizers import pre_tokenizers  # noqa: PLC0415

    kind = gguf.GGUFReader(file).get_field("tokenizer.ggml.pre")
    if kind is None or kind.contents() != "smollm":
        return
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _drop_traces(file: Path, keys: tuple[str, ...]) -> None:
    """Removes what the library wrote about this run, not about the model."""
    kept = {key: value for key, value in json.loads(file.read_text()).items() if key not in keys}
    file.write_text(json.dumps(kept, indent=2) + "\n")
