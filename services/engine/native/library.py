"""The native step's C interface: ctypes declarations and a model that owns its handle.

Calls release the GIL. Tensors that are given are copied; only a step's arrays must live through the call.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class KernelPath(IntEnum):
    """How products of bf16 operands are computed; see cpu.hpp."""

    NONE = 0
    AVX512 = 1
    AVX512_BF16 = 2
    AMX = 3


class KvFormat(IntEnum):
    """How keys and values are stored; see kv_cache.hpp."""

    BF16 = 0
    INT8 = 1

    @property
    def dtype(self) -> str:
        """As a fingerprint names it."""
        return "bfloat16" if self is KvFormat.BF16 else "int8"


class LinearName(IntEnum):
    """A linear layer's place; see abi.cpp."""

    QKV = 0
    ATTENTION_OUT = 1
    GATE_UP = 2
    DOWN = 3
    HEAD = 4


class VectorName(IntEnum):
    """A vector's place; see abi.cpp."""

    ATTENTION_NORM = 0
    MLP_NORM = 1
    QUERY_NORM = 2
    KEY_NORM = 3
    FINAL_NORM = 4
    FREQUENCIES = 5


class Shape(ctypes.Structure):
    """See step.hpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "num_layers",
                "hidden_size",
                "intermediate_size",
                "num_heads",
                "num_kv_heads",
                "head_size",
                "embedding_size",
                "window",
            )
        ),
        ("norm_epsilon", ctypes.c_float),
    )


class Batch(ctypes.Structure):
    """See step.hpp: addresses of int32 arrays, of uint8 flags (is_*), and of the logits' fp32 rows."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("ids", ctypes.c_void_p),
        ("row_begin", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_begin", ctypes.c_void_p),
        ("is_sampled", ctypes.c_void_p),
        ("vocab_size", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("likeliest", ctypes.c_void_p),
        ("is_finite", ctypes.c_void_p),
    )


class NativeError(RuntimeError):
    """A native call failed; says what it said."""


class Library:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self._calls = ctypes.CDLL(str(path))
        pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._declare("last_error", ctypes.c_char_p)
        self._declare("best_path", int32)
        self._declare("create", pointer, pointer, int32, int32, int32)
        self._declare("destroy", None, pointer)
        self._declare("set_embedding", int32, pointer, pointer)
        self._declare("set_vector", int32, pointer, int64, int32, pointer)
        self._declare("set_linear", int32, pointer, int64, int32, pointer)
        self._declare("pack_bf16", pointer, int32, int64, int64, pointer, pointer)
        self._declare("pack_int8", pointer, int32, int64, int64, pointer, pointer, pointer)
        self._declare("pack_groups", pointer, int32, int64, int64, int32, pointer, pointer, pointer, pointer)
        self._declare("free_linear", None, pointer)
        self._declare("apply", int32, pointer, int32, pointer, int64, pointer)
        self._declare("allocate", int32, pointer, int64)
        self._declare("poison", None, pointer, pointer, int64)
        self._declare("read_kv", None, pointer, *(int64,) * 4, pointer, pointer)
        self._declare("block_bytes", int64, pointer)
        self._declare("weight_bytes", int64, pointer)
        self._declare("activation_bytes", int64, pointer)
        self._declare("logits_stride", int64, pointer)
        self._declare("step", int32, pointer, pointer)

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:
        call = getattr(self._calls, f"pagemesh_{name}")
        call.restype, call.argtypes = result, arguments

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls `pagemesh_<name>`."""
        return getattr(self._calls, f"pagemesh_{name}")(*arguments)

    def check(self, name: str, *arguments: Any) -> None:
        """Calls what gives 0 if it went well. Raises NativeError."""
        if self.call(name, *arguments) != 0:
            raise NativeError(self.last_error())

    def last_error(self) -> str:
        """What the last failed call of this thread said."""
        return bytes(self.call("last_error")).decode()

    def best_path(self) -> KernelPath:
        """The fastest path of this processor."""
        return KernelPath(self.call("best_path"))


class NativeModel:
    """A model in native memory; close it."""

    def __init__(
        self, library: Library, shape: Shape, path: KernelPath, kv_format: KvFormat, num_threads: int
    ) -> None:
        """Raises NativeError."""
        self._library = library
        self._handle = library.call("create", ctypes.byref(shape), int(path), int(kv_format), num_threads)
        if not self._handle:
            raise NativeError(library.last_error())

    def set_embedding(self, address: int) -> None:
        """Takes [embedding_size, hidden_size] bf16."""
        self._library.check("set_embedding", self._handle, address)

    def set_vector(self, layer: int, name: VectorName, values: Floats) -> None:
        self._library.check("set_vector", self._handle, layer, int(name), values.ctypes.data)

    def set_linear(self, layer: int, name: LinearName, linear: int | None) -> None:
        """Takes the handle of a packed linear and leaves it empty."""
        self._library.check("set_linear", self._handle, layer, int(name), linear)

    def allocate(self, num_blocks: int) -> None:
        self._library.check("allocate", self._handle, num_blocks)

    def poison(self, block_ids: Sequence[int]) -> None:
        blocks = np.array(block_ids, np.int32)
        self._library.call("poison", self._handle, blocks.ctypes.data, len(blocks))

    def read_kv(self, layer: int, block: int, head: int, slot: int, head_size: int) -> tuple[Floats, Floats]:
        """For tests: one token's key and value as attention computes with them."""
        key, value = np.empty(head_size, np.float32), np.empty(head_size, np.float32)
        self._library.call(
            "read_kv", self._handle, layer, block, head, slot, key.ctypes.data, value.ctypes.data
        )
        return key, value

    @property
    def block_bytes(self) -> int:
        """Of keys and values of all layers."""
        return int(self._library.call("block_bytes", self._handle))

    @property
    def weight_bytes(self) -> int:
        """Of all weights as they are packed."""
        return int(self._library.call("weight_bytes", self._handle))

    @property
    def activation_bytes(self) -> int:
        """Of the largest step so far."""
        return int(self._library.call("activation_bytes", self._handle))

    @property
    def logits_stride(self) -> int:
        """Floats from one row of logits to the next."""
        return int(self._library.call("logits_stride", self._handle))

    def step(self, batch: Batch) -> None:
        """Raises NativeError."""
        self._library.check("step", self._handle, ctypes.byref(batch))

    def close(self) -> None:
        self._library.call("destroy", self._handle)
        self._handle = None
