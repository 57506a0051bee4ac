"""Executors by name; a backend's libraries are imported only when it is asked for."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from services.contract.model_folder import ModelFolder, open_model_folder, resolve_model
from services.engine.executors.script import ScriptFile
from services.engine.native.build import NativeUnavailableError, find_library
from services.engine.step import Executor

NATIVE_BLOCK_SIZE = 16
"""The only one: as many tokens as a tile has rows."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutorRequest:
    """What an executor is made from."""

    model: str
    device: str
    dtype: str
    attention: str
    block_size: int
    num_threads: int
    max_model_len: int
    script: Path | None
    max_sequences: int = 64
    unfused: frozenset[str] = frozenset()
    is_invariant: bool = False
    weights: str = "plain"
    """plain (as dtype says), int8 or int4."""
    kv_dtype: str = "plain"
    """plain (as dtype says) or int8."""


@dataclass(frozen=True, slots=True)
class MadeExecutor:
    """An executor that is not loaded yet, and the revision of what it computes with."""

    executor: Executor
    revision: str
    folder: ModelFolder | None
    dtype: str = "float32"
    """Of the weights in memory, where there are any."""


class UnknownExecutorError(Exception):
    """No executor has this name; says which there are."""


class UnsupportedFormatError(Exception):
    """The executor has no such weights or KV; one line."""


class UnusableDeviceError(Exception):
    """Torch does not know the device or does not find it here; one line."""


class UnusableExecutorError(Exception):
    """The executor that was asked for cannot compute this here; one line: why."""


class UnprovenKernelError(Exception):
    """A trace of one step does not show the kernel that was promised; one line."""


def make_executor(name: str, request: ExecutorRequest) -> MadeExecutor:
    """Finds the model where one is needed; blocks.

    Raises UnknownExecutorError, UnusableExecutorError, UnsupportedFormatError, UnusableDeviceError,
    NativeUnavailableError, ModelFolderError, ScriptError.
    """
    if name not in FACTORIES:
        raise UnknownExecutorError(f"executor {name!r} is unknown; there are {', '.join(FACTORIES)}")
    return FACTORIES[name](request)


def _make_auto(request: ExecutorRequest) -> MadeExecutor:
    """Native where it can be; else torch, unless what was asked for needs the native step."""
    try:
        return _make_native(request)
    except (UnusableExecutorError, NativeUnavailableError) as error:
        if request.weights != "plain" or request.kv_dtype != "plain":
            raise
        logger.info("computing in torch", extra={"reason": str(error)})
        return _make_torch(request)


def _make_native(request: ExecutorRequest) -> MadeExecutor:
    folder = open_model_folder(resolve_model(request.model))
    cause = _misfit(request)
    if cause is not None:
        raise UnusableExecutorError(f"the native executor does not compute {cause}")
    from services.engine.executors.native_executor import (  # noqa: PLC0415
        NativeExecutor,
        NativeOptions,
        unsupported_shape,
    )

    cause = unsupported_shape(folder)
    if cause is not None:
        raise UnusableExecutorError(f"the native executor does not compute {cause}")
    library = find_library()
    options = NativeOptions(
        num_threads=request.num_threads,
        max_model_len=request.max_model_len,
        weights=request.weights,
        kv_dtype=request.kv_dtype,
    )
    return MadeExecutor(NativeExecutor(folder, library, options), folder.revision, folder, "bfloat16")


def _misfit(request: ExecutorRequest) -> str | None:
    """What in the request the native step does not compute."""
    if request.device != "cpu":
        return f"on {request.device}"
    if request.dtype not in {"auto", "bfloat16"}:
        return f"in {request.dtype}"
    if request.attention != "auto":
        return f"with attention {request.attention}"
    if request.unfused:
        return f"unfused {', '.join(sorted(request.unfused))}"
    if request.block_size != NATIVE_BLOCK_SIZE:
        return f"in blocks of {request.block_size}, only of {NATIVE_BLOCK_SIZE}"
    return None


def _make_torch(request: ExecutorRequest) -> MadeExecutor:
    _refuse_formats("torch", request)
    folder = open_model_folder(resolve_model(request.model))
    from services.engine.executors.torch_executor import TorchExecutor, TorchOptions  # noqa: PLC0415

    _check_device(request.device)
    dtype = _torch_dtype(request)
    options = TorchOptions(
        dtype=dtype,
        device=request.device,
        attention=request.attention,
        block_size=request.block_size,
        num_threads=request.num_threads,
        max_model_len=request.max_model_len,
        max_sequences=request.max_sequences,
        unfused=request.unfused,
        is_invariant=request.is_invariant,
    )
    return MadeExecutor(TorchExecutor(folder, options), folder.revision, folder, dtype)


def _torch_dtype(request: ExecutorRequest) -> str:
    """By default exact on a CPU, and what a GPU is built for on one."""
    if request.dtype != "auto":
        return request.dtype
    return "float32" if request.device == "cpu" else "bfloat16"


def _refuse_formats(name: str, request: ExecutorRequest) -> None:
    for option, value in (("weights", request.weights), ("kv_dtype", request.kv_dtype)):
        if value != "plain":
            raise UnsupportedFormatError(
                f"executor {name!r} has no {option} {value!r}; use --executor native, or {option} plain"
            )


def _check_device(name: str) -> None:
    import torch  # noqa: PLC0415

    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # a build without a backend asserts that it has it
        cause = str(error).strip().splitlines()[0][:200]
        raise UnusableDeviceError(f"device {name!r} cannot be used here: {cause}; use cpu") from error


def _make_scripted(request: ExecutorRequest) -> MadeExecutor:
    _refuse_formats("scripted", request)
    revision = ScriptFile(request.script).read().model_revision or "scripted"
    from services.engine.executors.scripted import ScriptedExecutor  # noqa: PLC0415

    return MadeExecutor(ScriptedExecutor(request.script, block_size=request.block_size), revision, None)


FACTORIES: Mapping[str, Callable[[ExecutorRequest], MadeExecutor]] = MappingProxyType(
    {"auto": _make_auto, "native": _make_native, "torch": _make_torch, "scripted": _make_scripted}
)
