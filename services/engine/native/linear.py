"""Linear layers in native memory: packed from torch tensors in any format, given to a model or used alone."""

from enum import IntEnum
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from services.engine.native.library import KernelPath, Library, NativeError
from services.engine.quantization.groups import GroupedRows
from services.engine.quantization.rows import Int8Rows

PANEL_COLUMNS = 32


class ColumnOrder(IntEnum):
    """Which rows of a weight make a panel; see linear.hpp."""

    PLAIN = 0
    GATE_UP = 1


class PackedLinear:
    """Owns a packed linear until it is freed; a context manager."""

    def __init__(self, library: Library, handle: int | None, out_size: int) -> None:
        """Raises NativeError if nothing was packed."""
        if not handle:
            raise NativeError(library.last_error())
        self._library = library
        self.handle = handle
        self._out_size = out_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.call("free_linear", self.handle)

    def apply(self, rows: torch.Tensor, path: KernelPath) -> torch.Tensor:
        """Takes float32 [rows, in]; gives [rows, out], no bias. For tests: one thread, order PLAIN."""
        exact = np.ascontiguousarray(rows.numpy(), np.float32)
        columns = -(-self._out_size // PANEL_COLUMNS) * PANEL_COLUMNS
        out = np.zeros((len(exact), columns), np.float32)
        self._library.check("apply", self.handle, int(path), exact.ctypes.data, len(exact), out.ctypes.data)
        return torch.from_numpy(out[:, : self._out_size])


def pack_bf16(
    library: Library, weight: torch.Tensor, order: ColumnOrder, bias: torch.Tensor | None
) -> PackedLinear:
    """Takes [out, in] bf16."""
    return _pack(library, "pack_bf16", weight, order, bias)


def pack_int8(
    library: Library, weight: Int8Rows, order: ColumnOrder, bias: torch.Tensor | None
) -> PackedLinear:
    return _pack(library, "pack_int8", weight.codes, order, bias, weight.scales.contiguous())


def pack_groups(
    library: Library, weight: GroupedRows, order: ColumnOrder, bias: torch.Tensor | None
) -> PackedLinear:
    scales = weight.scales.contiguous()
    minima = None if weight.minima is None else weight.minima.contiguous()
    return _pack(library, "pack_groups", weight.codes, order, bias, scales, minima, bits=weight.bits)


def _pack(
    library: Library,
    name: str,
    codes: torch.Tensor,
    order: ColumnOrder,
    bias: torch.Tensor | None,
    *more: torch.Tensor | None,
    bits: int | None = None,
) -> PackedLinear:
    held: list[Any] = [codes.contiguous(), *more, None if bias is None else bias.float().contiguous()]
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in held]
    sizes = [*codes.shape] if bits is None else [*codes.shape, bits]
    return PackedLinear(library, library.call(name, int(order), *sizes, *addresses), codes.shape[0])
