"""A model folder as every process meets it: where a name leads, whether it is whole, which revision it is.

Reads headers and JSON only, so that a bad folder is refused in a moment. Knows no tensors, imports no torch.
"""

import hashlib
import json
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "smollm2"
"""The name that stands for the default model."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_MAX_HEADER_BYTES = 100_000_000
_DTYPE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip

Report = Callable[[str], None]
"""Takes one line of progress."""


class ModelFolderError(Exception):
    """A model folder is not usable. One line: path, cause, remedy."""

    def __init__(self, path: Path | str, cause: str, remedy: str) -> None:
        super().__init__(" ".join(f"{path}: {cause}; {remedy}".split()))


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder in Hugging Face layout that passed the checks."""

    path: Path
    revision: str
    """SHA-256 over config.json and the weights, hexadecimal."""
    config: Mapping[str, Any]
    """config.json."""
    eos_ids: frozenset[int]
    """End-of-sequence ids: the union of config.json, generation_config.json and tokenizer_config.json."""
    vocab_size: int
    """Ids that the tokenizer knows, added tokens included; the embedding may be padded beyond it."""
    weights: tuple[Path, ...]
    """Safetensors files."""


def cache_folder() -> Path:
    """Where converted models and remembered hashes lie: $PAGEMESH_CACHE, else ~/.cache/pagemesh."""
    return Path(os.environ.get("PAGEMESH_CACHE") or Path.home() / ".cache" / "pagemesh")


def report_to_stderr(line: str) -> None:
    """The usual Report."""
    print(line, file=sys.stderr, flush=True)


def resolve_model(name: str, report: Report = report_to_stderr) -> Path:
    """Turns `smollm2`, a folder, a GGUF file or a hub id into a folder, fetching only what is no path.

    Raises ModelFolderError.
    """
    if name == DEFAULT_MODEL:
        from services.contract.default_model import fetch_default_model  # noqa: PLC0415 (it imports this module)

        return fetch_default_model(report)
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        from services.contract.gguf_folder import fetch_gguf_folder  # noqa: PLC0415 (it imports this module)

        return fetch_gguf_folder(path, report)
    if path.exists() or _HUB_ID.fullmatch(name) is None:
        return path
    return _fetch_from_hub(name, report)


def _fetch_from_hub(name: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (hub access is rare and slow to import)
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    report(f"{name}: no such folder here; asking the model hub")
    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (OSError, HFValidationError) as error:  # the hub's HTTP and offline errors are OSErrors
        cause = f"is neither a folder nor a model the hub gave ({_first_line(error)})"
        raise ModelFolderError(name, cause, "check the spelling, the network and your access") from error


def open_model_folder(path: Path) -> ModelFolder:
    """Checks a folder and tells its revision. Raises ModelFolderError before any weight is read."""
    try:
        return _open(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _open(path: Path) -> ModelFolder:
    if not path.exists():
        raise ModelFolderError(path, "no such folder", "give a folder in Hugging Face layout, or smollm2")
    if not path.is_dir():
        raise ModelFolderError(path, "is not a folder", "give the folder that holds config.json")
    config = _read_json(path / "config.json")
    tokenizer = _read_tokenizer(path)
    weights = tuple(_weight_files(path))
    for file in weights:
        check_safetensors(file)
    ids = _token_ids(tokenizer, path / "tokenizer.json")
    vocab_size = max(ids.values()) + 1
    _check_vocabulary(path, config, vocab_size)
    return ModelFolder(
        path=path,
        revision=_revision(path, weights),
        config=config,
        eos_ids=_eos_ids(path, config, ids),
        vocab_size=vocab_size,
        weights=weights,
    )


def check_safetensors(file: Path) -> None:
    """Raises ModelFolderError if the header is not valid or the file is shorter or longer than it says."""
    remedy = "copy or download the file again"
    size = _size(file)
    try:
        with file.open("rb") as stream:
            (header_bytes,) = struct.unpack("<Q", stream.read(8))
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, size - 8):
                raise ModelFolderError(file, f"is corrupt or truncated ({size} bytes)", remedy)
            header = json.loads(stream.read(header_bytes))
        end = max(_tensor_ends(header))
    except OSError as error:
        raise _unreadable(file, error) from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(file, "is corrupt (its header is not valid)", remedy) from error
    expected = 8 + header_bytes + end
    if size != expected:
        raise ModelFolderError(file, f"is truncated or corrupt ({size} bytes, {expected} expected)", remedy)


def _tensor_ends(header: Mapping[str, Any]) -> Iterator[int]:
    """Yields where each tensor's bytes end; raises ValueError where shape and bytes disagree."""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        num_bits = _DTYPE_BITS[entry["dtype"]]
        for length in entry["shape"]:
            num_bits *= length
        if start < 0 or (end - start) * 8 != num_bits:
            raise ValueError(name)
        yield end


def _weight_files(path: Path) -> list[Path]:
    single = path / "model.safetensors"
    if single.exists():
        return [single]
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = set(_read_json(index).get("weight_map", {}).values())
        files = [path / name for name in sorted(names)]
        if any(file.parent != path for file in files):
            raise ModelFolderError(index, "names files outside its folder", "download the folder again")
        if files:
            return files
    raise ModelFolderError(path, "has no model.safetensors", "give a folder with safetensors weights")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        remedy = "give a folder in Hugging Face layout"
        raise ModelFolderError(file.parent, f"has no {file.name}", remedy) from error
    except OSError as error:
        raise _unreadable(file, error) from error
    except ValueError as error:
        raise ModelFolderError(file, "is not valid JSON", "copy or download the file again") from error
    if not isinstance(value, dict):
        raise ModelFolderError(file, "is not a JSON object", "copy or download the file again")
    return value


def _read_optional_json(file: Path) -> dict[str, Any]:
    return _read_json(file) if file.exists() else {}


def _read_tokenizer(path: Path) -> dict[str, Any]:
    if not (path / "tokenizer.json").exists():
        remedy = "save the fast tokenizer into it (tokenizer.save_pretrained)"
        raise ModelFolderError(path, "has no tokenizer (tokenizer.json)", remedy)
    return _read_json(path / "tokenizer.json")


def _token_ids(tokenizer: Mapping[str, Any], file: Path) -> dict[str, int]:
    """Never empty."""
    try:
        vocab = tokenizer["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: [piece, score]
            vocab = {entry[0]: index for index, entry in enumerate(vocab)}
        ids = {**vocab, **{token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}}
        max(ids.values())
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ModelFolderError(file, "holds no vocabulary", "copy or download the file again") from error
    return ids


def _check_vocabulary(path: Path, config: Mapping[str, Any], vocab_size: int) -> None:
    embedding = config.get("vocab_size")
    if isinstance(embedding, int) and vocab_size > embedding:
        cause = f"the tokenizer has {vocab_size} ids, the embedding {embedding}"
        raise ModelFolderError(path, cause, "use the tokenizer that belongs to these weights")


def _eos_ids(path: Path, config: Mapping[str, Any], ids: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for source in (config, _read_optional_json(path / "generation_config.json")):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    token = _read_optional_json(path / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if isinstance(text, str) and text in ids:
        found.add(ids[text])
    return frozenset(found)


def _revision(path: Path, weights: tuple[Path, ...]) -> str:
    files = (path / "config.json", *weights)
    stamps = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    remembered = cache_folder() / "revisions" / f"{key}.json"
    try:
        known = json.loads(remembered.read_bytes())
        if known["stamps"] == stamps:
            return str(known["revision"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not remembered: hash again
    revision = _hash_files(files)
    _remember(remembered, json.dumps({"stamps": stamps, "revision": revision}))
    return revision


def _hash_files(files: tuple[Path, ...]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + bytes.fromhex(file_sha256(file)))
    return total.hexdigest()


def file_sha256(file: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal. Raises ModelFolderError."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from error


def _remember(file: Path, text: str) -> None:
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        partial.replace(file)
    except OSError:
        return  # a cache that cannot be written costs only the next hash


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError as error:
        raise ModelFolderError(file, "is missing", "download the folder again") from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> ModelFolderError:
    return ModelFolderError(file, f"cannot be read ({error.strerror})", "check its permissions")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
