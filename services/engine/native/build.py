"""Builds the native step once per version of its sources and keeps the library in the cache folder.

The processor that runs it is asked at run time: a library serves every x86-64 with AVX512.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.contract.model_folder import cache_folder

SOURCES = Path(__file__).parent / "src"
FLAGS = (
    "-std=c++20",
    "-O2",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
)
"""No contraction: a sum must not be rounded differently where a compiler unrolls it.
The warning that is off has false alarms in GCC 12's own headers (bug 105593)."""
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")
_BF16 = (*_AVX512, "-mavx512bf16")
_AMX = (*_BF16, "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8")
_VNNI = (*_AVX512, "-mavx512vnni")
_TARGETS: Mapping[str, Sequence[str]] = {
    "_amx": _AMX,
    "_avx512_bf16": _BF16,
    "_avx512_vnni": _VNNI,
    "": _AVX512,
}
"""By the end of a file's name, the first that fits. Never -march=native: it misnames virtual processors."""
NEEDED_FEATURES = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"})
MORE_FLAGS = "PAGEMESH_NATIVE_FLAGS"
"""Names the environment variable with further compiler flags, those of sanitizers for one."""
_COMPILE_TIMEOUT_S = 300.0


class NativeUnavailableError(Exception):
    """The native step cannot run here. One line: why."""


def find_library() -> Path:
    """Gives the built library, building it at first use. Raises NativeUnavailableError."""
    _check_processor()
    flags = (*FLAGS, *shlex.split(os.environ.get(MORE_FLAGS, "")))
    path = library_path(flags)
    return path if path.exists() else build(flags, path)


def library_path(flags: Sequence[str]) -> Path:
    """Where the library of these sources lies, or will."""
    digest = hashlib.sha256(repr((tuple(flags), sorted(_TARGETS.items()))).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return cache_folder() / "native" / f"pagemesh-{digest.hexdigest()[:16]}.so"


def build(flags: Sequence[str], path: Path) -> Path:
    """Compiles every file for its instructions and links them; processes that build at once do no harm.

    Raises NativeUnavailableError.
    """
    compiler = _find_compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as scratch:
            objects = _compile(compiler, flags, Path(scratch))
            linked = Path(scratch, "library.so")
            _call([*compiler, *flags, "-shared", *map(str, objects), "-o", str(linked), "-pthread"])
            linked.replace(path)
    except OSError as error:
        raise NativeUnavailableError(f"the native step cannot be built in {path.parent}: {error}") from error
    return path


def _check_processor() -> None:
    if platform.machine() != "x86_64":
        raise NativeUnavailableError(f"the native step needs x86-64; this is {platform.machine()}")
    missing = NEEDED_FEATURES - _processor_features()
    if missing:
        raise NativeUnavailableError(
            f"the native step needs {', '.join(sorted(missing))}; this processor has none"
        )


def _processor_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(found.split())


def _find_compiler() -> list[str]:
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["c++"]]:
        if shutil.which(command[0]) is not None:
            return command
    raise NativeUnavailableError(
        f"no C++ compiler ({' or '.join(named[:1] or ['g++', 'c++'])}) to build the native step"
    )


def _compile(compiler: Sequence[str], flags: Sequence[str], folder: Path) -> list[Path]:
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        _call([*compiler, *flags, *_target_of(source), "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(compile_one, sources, objects))
    return objects


def _target_of(source: Path) -> Sequence[str]:
    return next(target for end, target in _TARGETS.items() if source.stem.endswith(end))


def _call(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or ["no message"]
        raise NativeUnavailableError(f"the compiler refuses the native step: {lines[0][:300]}") from error
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailableError(f"the compiler took more than {_COMPILE_TIMEOUT_S:.0f} s") from error
