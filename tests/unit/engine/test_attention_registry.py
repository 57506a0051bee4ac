"""A backend that was named runs or is refused in one line that says why; nothing falls back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.engine.attention import flash, registry
from services.engine.attention.backend import AttentionBackend, AttentionShape
from services.engine.attention.flash import Flash2, Flash3, Flash4, TorchFlash
from services.engine.attention.registry import UnsupportedAttentionError, find_backend, make_backend

CPU = AttentionShape(
    num_layers=2,
    num_heads=28,
    num_kv_heads=4,
    head_size=128,
    block_size=16,
    window=None,
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
)
CUDA = replace(CPU, device=torch.device("cuda"))


@pytest.fixture
def on_arch(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, set[type[AttentionBackend]]], None]:
    """Pretends to be on a GPU of a compute capability, with these generations installed."""

    def pretend(arch: int, installed: set[type[AttentionBackend]]) -> None:
        monkeypatch.setattr(registry, "_arch", lambda device: arch)
        for kind in flash.GENERATIONS:
            reason = None if kind in installed else f"{kind.module} is not installed"
            monkeypatch.setattr(kind, "missing", classmethod(lambda cls, reason=reason: reason))

    return pretend


def test_flash_is_refused_on_a_cpu_in_one_line_that_names_every_generation() -> None:
    with pytest.raises(UnsupportedAttentionError) as caught:
        make_backend("flash", CPU)
    message = str(caught.value)
    assert message.startswith("attention backend 'flash' cannot run here: ")
    assert "\n" not in message
    for generation in (2, 3, 4):
        assert f"flash-attn generation {generation}: " in message
    assert "varlen_attn, generation 2: no device cpu" in message


def test_auto_is_reference_on_a_cpu() -> None:
    assert type(make_backend("auto", CPU)).__name__ == "ReferenceAttention"


@pytest.mark.parametrize(
    ("arch", "installed", "block_size", "expected"),
    [
        (90, {Flash4, Flash3, Flash2, TorchFlash}, 16, Flash4),
        (90, {Flash3, Flash2, TorchFlash}, 16, Flash3),
        (80, {Flash4, Flash3, Flash2, TorchFlash}, 256, Flash2),
        (80, {TorchFlash}, 256, TorchFlash),
        (100, {Flash4, Flash3}, 32, Flash4),
    ],
)
def test_the_newest_generation_that_the_table_allows_is_taken(
    on_arch: Callable[[int, set[type[AttentionBackend]]], None],
    arch: int,
    installed: set[type[AttentionBackend]],
    block_size: int,
    expected: type[AttentionBackend],
) -> None:
    on_arch(arch, installed)
    assert find_backend("flash", replace(CUDA, block_size=block_size)) is expected


@pytest.mark.parametrize(
    ("arch", "installed", "changes", "reason"),
    [
        (80, {Flash2}, {}, r"generation 2: no blocks of 16 \(--block-size 256\)"),
        (80, {Flash3}, {}, "generation 3: no compute capability 8.0"),
        (75, {TorchFlash}, {"block_size": 256}, "no compute capability 7.5"),
        (90, {Flash3}, {"dtype": torch.float32}, "no KV of torch.float32"),
        (90, {Flash3}, {"head_size": 100}, "no heads of 100"),
        (90, {Flash3}, {"is_invariant": True}, "no batch invariance"),
    ],
)
def test_what_the_table_does_not_allow_is_said(
    on_arch: Callable[[int, set[type[AttentionBackend]]], None],
    arch: int,
    installed: set[type[AttentionBackend]],
    changes: dict[str, object],
    reason: str,
) -> None:
    on_arch(arch, installed)
    with pytest.raises(UnsupportedAttentionError, match=reason):
        find_backend("flash", replace(CUDA, **changes))  # type: ignore[arg-type]


def test_an_older_function_without_what_is_needed_is_not_taken() -> None:
    """torch 2.11 has varlen_attn without block tables."""

    class Older(TorchFlash):
        module = "torch.nn.functional"
        function = "layer_norm"
        needs = frozenset({"input", "block_table"})

    assert Older.missing() == "torch.nn.functional.layer_norm has no block_table"
    assert TorchFlash.missing() is None


def test_auto_takes_triton_where_flash_wants_larger_blocks(
    on_arch: Callable[[int, set[type[AttentionBackend]]], None],
) -> None:
    on_arch(80, {TorchFlash})
    assert find_backend("triton", CUDA).__name__ == "TritonAttention"
    with pytest.raises(UnsupportedAttentionError):
        find_backend("flash", CUDA)
    assert type(make_backend("auto", CUDA)).__name__ == "TritonAttention"
