"""Importing this makes the Triton kernels of this process run in Triton's interpreter, on the CPU.

Whether a kernel is interpreted is decided when its module is imported, so the variable is set for that moment
only: processes that a test starts do not inherit it.
"""

import os
from typing import Any

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
try:
    # The interpreter imports gluon at the first call, which must find the variable as well.
    import triton.experimental.gluon  # noqa: F401
    import triton.language as tl
    from triton.runtime import interpreter

    import services.engine.attention.triton
    import services.engine.model.fused  # noqa: F401
finally:
    del os.environ["TRITON_INTERPRET"]

_create_dot = interpreter.InterpreterBuilder.create_dot


def _create_bf16_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
    """The interpreter keeps bf16 as uint16 and multiplies those: here as the float32 that they mean."""
    return _create_dot(self, _widen(a), _widen(b), *others)


def _widen(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


interpreter.InterpreterBuilder.create_dot = _create_bf16_dot
