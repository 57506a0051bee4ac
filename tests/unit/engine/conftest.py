"""Engines without a process, at both lags."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.engine_driver import EngineDriver, write_script

MakeDriver = Callable[..., EngineDriver]


@pytest.fixture(params=[0, 1], ids=["lag0", "lag1"])
def lag(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def make_driver(tmp_path: Path, lag: int) -> MakeDriver:
    """An engine whose script has the given parts; limits by keyword."""

    def make(*parts: dict[str, Any], top: dict[str, Any] | None = None, **limits: Any) -> EngineDriver:
        return EngineDriver(write_script(tmp_path / "script.json", *parts, **(top or {})), lag=lag, **limits)

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of torch: tiny products are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def oracle(tmp_path: Path) -> Callable[..., list[int]]:
    """Ids of a request alone in a big engine without cache."""

    def run(ids: list[int], max_output_tokens: int = 8, **sampling: Any) -> list[int]:
        driver = EngineDriver(write_script(tmp_path / "oracle.json"), num_blocks=300)
        return driver.output(ids, max_output_tokens, **sampling)

    return run
