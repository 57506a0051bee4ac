"""Attention backends by name."""

from collections.abc import Mapping
from types import MappingProxyType

from services.engine.attention.backend import AttentionBackend, AttentionShape, Capabilities
from services.engine.attention.reference import ReferenceAttention

BACKENDS: Mapping[str, type[AttentionBackend]] = MappingProxyType({"reference": ReferenceAttention})


class UnsupportedAttentionError(Exception):
    """The named backend does not exist or cannot do what the model asks; says what."""


def make_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Raises UnsupportedAttentionError."""
    if name not in BACKENDS:
        raise UnsupportedAttentionError(
            f"attention backend {name!r} is unknown; there are {', '.join(BACKENDS)}"
        )
    missing = _missing(BACKENDS[name].capabilities, shape)
    if missing is not None:
        raise UnsupportedAttentionError(f"attention backend {name!r} does not support {missing}")
    return BACKENDS[name](shape)


def _missing(capabilities: Capabilities, shape: AttentionShape) -> str | None:
    if shape.device.type not in capabilities.devices:
        return f"device {shape.device.type}"
    if shape.block_size not in capabilities.block_sizes:
        return f"blocks of {shape.block_size}"
    if capabilities.head_sizes and shape.head_size not in capabilities.head_sizes:
        return f"heads of {shape.head_size}"
    if shape.dtype not in capabilities.kv_dtypes:
        return f"KV of {shape.dtype}"
    if shape.window is not None and not capabilities.has_window:
        return "a sliding window"
    return None
