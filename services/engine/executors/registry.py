"""Executors by name; a backend's libraries are imported only when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from services.contract.model_folder import ModelFolder, open_model_folder, resolve_model
from services.engine.executors.script import ScriptFile
from services.engine.step import Executor


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


@dataclass(frozen=True, slots=True)
class MadeExecutor:
    """An executor that is not loaded yet, and the revision of what it computes with."""

    executor: Executor
    revision: str
    folder: ModelFolder | None


class UnknownExecutorError(Exception):
    """No executor has this name; says which there are."""


class UnusableDeviceError(Exception):
    """Torch does not know the device or does not find it here; one line."""


class UnprovenKernelError(Exception):
    """A trace of one step does not show the kernel that was promised; one line."""


def make_executor(name: str, request: ExecutorRequest) -> MadeExecutor:
    """Finds the model where one is needed; blocks.

    Raises UnknownExecutorError, UnusableDeviceError, ModelFolderError, ScriptError.
    """
    if name not in FACTORIES:
        raise UnknownExecutorError(f"executor {name!r} is unknown; there are {', '.join(FACTORIES)}")
    return FACTORIES[name](request)


def _make_torch(request: ExecutorRequest) -> MadeExecutor:
    folder = open_model_folder(resolve_model(request.model))
    from services.engine.executors.torch_executor import TorchExecutor, TorchOptions  # noqa: PLC0415

    _check_device(request.device)
    options = TorchOptions(
        dtype=request.dtype,
        device=request.device,
        attention=request.attention,
        block_size=request.block_size,
        num_threads=request.num_threads,
        max_model_len=request.max_model_len,
        max_sequences=request.max_sequences,
        unfused=request.unfused,
        is_invariant=request.is_invariant,
    )
    return MadeExecutor(TorchExecutor(folder, options), folder.revision, folder)


def _check_device(name: str) -> None:
    import torch  # noqa: PLC0415

    try:
        torch.empty(0, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:  # a build without a backend asserts that it has it
        cause = str(error).strip().splitlines()[0][:200]
        raise UnusableDeviceError(f"device {name!r} cannot be used here: {cause}; use cpu") from error


def _make_scripted(request: ExecutorRequest) -> MadeExecutor:
    revision = ScriptFile(request.script).read().model_revision or "scripted"
    from services.engine.executors.scripted import ScriptedExecutor  # noqa: PLC0415

    return MadeExecutor(ScriptedExecutor(request.script, block_size=request.block_size), revision, None)


FACTORIES: Mapping[str, Callable[[ExecutorRequest], MadeExecutor]] = MappingProxyType(
    {"torch": _make_torch, "scripted": _make_scripted}
)
