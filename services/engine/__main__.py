"""`python -m services.engine`."""

import os

from services.chassis.entry import run_process
from services.chassis.log import start_logging
from services.chassis.settings import load_settings
from services.contract.model_folder import ModelFolderError
from services.engine.executors.registry import (
    UnknownExecutorError,
    UnprovenKernelError,
    UnsupportedFormatError,
    UnusableDeviceError,
    UnusableExecutorError,
)
from services.engine.executors.script import ScriptError
from services.engine.memory import TooLittleMemoryError
from services.engine.native.build import NativeUnavailableError
from services.engine.settings import EngineSettings
from services.engine.step_runner import DeadExecutorError
from services.engine.wiring import SERVICE, serve

EXPECTED = (
    ModelFolderError,
    UnknownExecutorError,
    UnsupportedFormatError,
    UnusableDeviceError,
    UnusableExecutorError,
    UnprovenKernelError,
    NativeUnavailableError,
    ScriptError,
    TooLittleMemoryError,
    DeadExecutorError,
)


def main() -> None:
    """Serves until SIGTERM."""
    # Compute threads that spin while they wait take the cores that the other processes of one machine need:
    # a step of four rows beside a busy neighbour takes four times as long. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Torch's profiler, which proves the attention kernel, would write to standard error.
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    settings = load_settings(EngineSettings)
    start_logging(SERVICE, settings.log_level)
    run_process(SERVICE, lambda: serve(settings), expected=EXPECTED)


if __name__ == "__main__":
    main()
