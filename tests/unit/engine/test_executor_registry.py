"""An option that an executor does not have is never passed over in silence."""

from pathlib import Path

import pytest

from services.engine.executors.registry import ExecutorRequest, UnusableExecutorError, make_executor
from services.engine.executors.torch_executor import TorchExecutor
from tests.support.tiny_models import make_tiny_model


def test_what_only_torch_can_leave_unfused_is_left_to_torch(tmp_path: Path) -> None:
    model = str(make_tiny_model(tmp_path))
    unfused = frozenset({"qkv", "norm"})
    request = ExecutorRequest(model, "cpu", "auto", "auto", 16, 1, 0, None, unfused=unfused)
    with pytest.raises(UnusableExecutorError, match="does not compute unfused norm, qkv"):
        make_executor("native", request)
    assert isinstance(make_executor("auto", request).executor, TorchExecutor)
