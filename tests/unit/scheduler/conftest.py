"""A placement core with default limits."""

import pytest

from services.scheduler.core.limits import Limits
from tests.support.scheduler_mesh import Mesh


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(Limits())
