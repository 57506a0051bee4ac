"""Classes carry the proto's numbers."""

import pytest

from pagemesh.v1 import generation_pb2
from services.contract.errors import MeshError, Reason
from services.contract.priority import Priority, priority_of


def test_numbers_are_the_protos_and_unspecified_is_interactive() -> None:
    for name, number in generation_pb2.Priority.items():
        expected = "INTERACTIVE" if number == 0 else name.removeprefix("PRIORITY_")
        assert priority_of(number) is Priority[expected]


@pytest.mark.parametrize("number", [4, 99, -1])
def test_unknown_class_is_the_callers_fault(number: int) -> None:
    with pytest.raises(MeshError) as caught:
        priority_of(number)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_FIELD, "priority")
