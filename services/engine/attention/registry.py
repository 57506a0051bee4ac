"""Attention backends by name. What was named runs, or is refused in one line; nothing falls back."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from services.engine.attention.backend import AttentionBackend, AttentionShape
from services.engine.attention.reference import ReferenceAttention

AUTO = "auto"
"""The fastest that the device takes: on CUDA flash, else triton; on a CPU reference."""


class UnsupportedAttentionError(Exception):
    """The named backend does not exist or cannot do what the model asks; says what."""


class _AbsentError(Exception):
    """The backend's library is not installed; says which."""


def _reference() -> Sequence[type[AttentionBackend]]:
    return (ReferenceAttention,)


def _flash() -> Sequence[type[AttentionBackend]]:
    from services.engine.attention.flash import GENERATIONS  # noqa: PLC0415

    return GENERATIONS


def _triton() -> Sequence[type[AttentionBackend]]:
    try:
        from services.engine.attention.triton import TritonAttention  # noqa: PLC0415
    except ImportError as error:
        raise _AbsentError("triton is not installed (extra [gpu])") from error
    return (TritonAttention,)


BACKENDS: Mapping[str, Callable[[], Sequence[type[AttentionBackend]]]] = MappingProxyType(
    {"reference": _reference, "flash": _flash, "triton": _triton}
)
"""Each name's classes, the preferred first; libraries are imported when they are asked for."""


def make_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Raises UnsupportedAttentionError."""
    if name == AUTO:
        return _make_auto(shape)
    return find_backend(name, shape)(shape)


def find_backend(name: str, shape: AttentionShape) -> type[AttentionBackend]:
    """The class that a name stands for here. Raises UnsupportedAttentionError."""
    if name not in BACKENDS:
        raise UnsupportedAttentionError(
            f"attention backend {name!r} is unknown; there are {', '.join((AUTO, *BACKENDS))}"
        )
    kinds, reasons = _kinds(name), []
    for kind in kinds:
        reason = kind.missing() or unsupported(kind, shape)
        if reason is None:
            return kind
        reasons.append(f"{kind.kernel}: {reason}" if len(kinds) > 1 else reason)
    raise UnsupportedAttentionError(f"attention backend {name!r} cannot run here: {'; '.join(reasons)}")


def unsupported(kind: type[AttentionBackend], shape: AttentionShape) -> str | None:
    """What of the shape is not in the kind's row of the capability table."""
    table = kind.capabilities
    if shape.device.type not in table.devices:
        return f"no device {shape.device.type}"
    if shape.device.type == "cuda" and table.archs and (arch := _arch(shape.device)) not in table.archs:
        return f"no compute capability {arch // 10}.{arch % 10}"
    if shape.block_size not in table.block_sizes:
        sizes = ", ".join(map(str, sorted(table.block_sizes)))
        return f"no blocks of {shape.block_size} (--block-size {sizes})"
    if table.head_sizes and shape.head_size not in table.head_sizes:
        return f"no heads of {shape.head_size}"
    if shape.dtype not in table.kv_dtypes:
        return f"no KV of {shape.dtype}"
    if shape.window is not None and not table.has_window:
        return "no sliding window"
    if shape.is_invariant and not table.is_row_invariant:
        return "no batch invariance"
    return None


def _kinds(name: str) -> Sequence[type[AttentionBackend]]:
    try:
        return BACKENDS[name]()
    except _AbsentError as error:
        raise UnsupportedAttentionError(f"attention backend {name!r} cannot run here: {error}") from error


def _make_auto(shape: AttentionShape) -> AttentionBackend:
    if shape.device.type == "cpu":
        return find_backend("reference", shape)(shape)
    try:
        return find_backend("flash", shape)(shape)
    except UnsupportedAttentionError as flash:
        try:
            return find_backend("triton", shape)(shape)
        except UnsupportedAttentionError as error:
            raise UnsupportedAttentionError(f"{flash}; {error}") from error


def _arch(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
