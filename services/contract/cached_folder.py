"""Folders in the cache that are made once for all processes: whole or not at all, made again when damaged."""

import contextlib
import fcntl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from services.contract.model_folder import ModelFolderError, file_sha256

Make = Callable[[Path, Path], None]
"""Fills a target folder, which it makes, with the help of a scratch folder."""

_SUMS = "SHA256SUMS"


def make_once(folder: Path, make: Make) -> Path:
    """Gives the folder, made by whoever comes first. Raises ModelFolderError."""
    try:
        if _is_whole(folder):
            return folder
        with _locked(folder):
            if not _is_whole(folder):  # another process may have made it meanwhile
                _make(folder, make)
    except OSError as error:
        remedy = "set PAGEMESH_CACHE to a folder with room for the model twice"
        raise ModelFolderError(folder, f"cannot be made ({error})", remedy) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """True if every file has the checksum that was written down when it was made."""
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


def _make(folder: Path, make: Make) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
        source, target = Path(scratch, "source"), Path(scratch, "target")
        source.mkdir()
        make(source, target)
        _write_sums(target)
        if folder.exists():  # damaged; nothing whole is ever replaced
            folder.rename(Path(scratch, "damaged"))
        target.rename(folder)


def _write_sums(folder: Path) -> None:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    for file in files:
        file.chmod(0o644)
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in files]
    (folder / _SUMS).write_text("".join(lines))
