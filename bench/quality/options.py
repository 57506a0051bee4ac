"""The options that are scored, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from services.engine.executors.registry import ExecutorRequest, make_executor
from services.engine.step import LogitsSource
from tests.support.executor_driver import BLOCK_SIZE

OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "torch float32": {"executor": "torch", "dtype": "float32"},
        "torch bfloat16": {"executor": "torch", "dtype": "bfloat16"},
        "torch float16": {"executor": "torch", "dtype": "float16"},
        "native bfloat16": {"executor": "native"},
        "native int8": {"executor": "native", "weights": "int8"},
        "native int4": {"executor": "native", "weights": "int4"},
        "native bfloat16 + KV int8": {"executor": "native", "kv_dtype": "int8"},
        "native int8 + KV int8": {"executor": "native", "weights": "int8", "kv_dtype": "int8"},
    }
)
"""Executor, and the fields of its request that differ from the plain one's."""


def make_option(name: str, model: str, num_threads: int) -> LogitsSource:
    """Not loaded yet."""
    fields = dict(OPTIONS[name])
    executor = fields.pop("executor")
    plain: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "dtype": "bfloat16",
        "attention": "auto",
        "block_size": BLOCK_SIZE,
        "num_threads": num_threads,
        "max_model_len": 0,
        "script": None,
    }
    made = make_executor(executor, ExecutorRequest(**plain | fields)).executor
    assert hasattr(made, "watch_logits"), name
    return made  # type: ignore[return-value]
