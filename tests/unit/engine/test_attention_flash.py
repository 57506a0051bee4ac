"""What each FlashAttention generation is called with, against stand-ins that have its parameters and meaning.

The parameters are those of flash-attn 2.8, 3 and 4 and of torch 2.12; what a stand-in computes is what that
library documents, a default that sees the future among it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.engine.attention import flash
from services.engine.attention.backend import AttentionShape, Span
from services.engine.attention.flash import Flash2, Flash3, Flash4, TorchFlash

SHAPE = AttentionShape(
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    block_size=256,
    window=None,
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
)
T = torch.Tensor


def attend(
    q: T, k: T, v: T, starts: T, ends: T, table: T, is_causal: bool, window: tuple[int | None, int | None]
) -> T:
    """Bottom-right aligned, as every generation is; a window side of -1 or None is open."""
    left, right = ((-1 if side is None else side) for side in window)
    right = 0 if is_causal else right
    out = torch.empty_like(q)
    for row, end in enumerate(ends.tolist()):
        first, last = int(starts[row]), int(starts[row + 1])
        pages = table[row, : -(-end // k.shape[1])].long()
        keys, values = (pool[pages].flatten(0, 1)[:end].repeat_interleave(2, 1).double() for pool in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first:last].double(), keys) / q.shape[-1] ** 0.5
        distance = torch.arange(end - (last - first), end)[:, None] - torch.arange(end)
        is_hidden = torch.zeros_like(distance, dtype=torch.bool)
        if right >= 0:
            is_hidden |= distance < -right
        if left >= 0:
            is_hidden |= distance > left
        weights = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def kvcache_2(
    q: T,
    k_cache: T,
    v_cache: T,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: Any = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> T:
    assert num_splits == 1 and q.dim() == 4 and k_cache.shape[1] % 256 == 0
    starts = torch.arange(len(q) + 1) * q.shape[1]
    flat = attend(q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens, block_table, causal, window_size)
    return flat.view_as(q)


def varlen_2(
    q: T,
    k: T,
    v: T,
    cu_seqlens_q: T,
    cu_seqlens_k: T,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Any = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> T:
    assert max_seqlen_q > 1, "it would split over keys"
    assert cu_seqlens_k.dtype == torch.int32 and k.shape[1] % 256 == 0
    return attend(q, k, v, cu_seqlens_q, cu_seqlens_k.diff(), block_table, causal, window_size)


def kvcache_3(
    q: T,
    k_cache: T,
    v_cache: T,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: Any = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: Any = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: Any = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> T:
    assert max_seqlen_q >= int(cu_seqlens_q.diff().max())
    return attend(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, causal, window_size)


def varlen_4(
    q: T,
    k: T,
    v: T,
    qv: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    min_seqlen_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    gather_kv_indices: Any = None,
    page_table: Any = None,
    softmax_scale: Any = None,
    causal: bool = False,
    window_size: Any = (None, None),
    learnable_sink: Any = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Any = None,
    deterministic: bool = False,
) -> tuple[T, None]:
    assert cu_seqlens_k is None, "not supported with a page table"
    assert not (causal and window_size != (None, None)), "one or the other"
    return attend(q, k, v, cu_seqlens_q, seqused_k, page_table, causal, window_size), None


def varlen_torch(
    query: T,
    key: T,
    value: T,
    cu_seq_q: T,
    cu_seq_k: Any,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Any = None,
    block_table: Any = None,
    num_splits: Any = None,
) -> T:
    assert num_splits == 1 and enable_gqa and key.shape[1] % 256 == 0
    assert max_k >= int(seqused_k.max())
    return attend(query, key, value, cu_seq_q, seqused_k, block_table, window_size == (-1, 0), window_size)


class _Modules:
    flash_attn_with_kvcache = staticmethod(kvcache_2)
    flash_attn_varlen_func = staticmethod(varlen_2)


class _Module3:
    flash_attn_with_kvcache = staticmethod(kvcache_3)


class _Module4:
    flash_attn_varlen_func = staticmethod(varlen_4)


class _Torch:
    varlen_attn = staticmethod(varlen_torch)


MODULES = {Flash2: _Modules, Flash3: _Module3, Flash4: _Module4, TorchFlash: _Torch}


@pytest.fixture(params=list(MODULES), ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[AttentionShape], Any]:
    monkeypatch.setattr(flash, "import_module", lambda name: MODULES[request.param])
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("window", [None, 30])
def test_prefill_mixed_and_decode_steps_mean_causal_attention(
    make: Callable[[AttentionShape], Any], window: int | None
) -> None:
    shape = replace(SHAPE, window=window)
    backend = make(shape)
    assert set(backend.needs) <= set(backend._function.__code__.co_varnames)
    backend.allocate(6)
    backend.poison(range(6))
    generator = torch.Generator().manual_seed(0)
    tables, lengths = ([3, 1], [5]), (300, 90)
    whole = [
        [torch.randn(length, heads, 8, generator=generator).bfloat16() for heads in (4, 2, 2)]
        for length in lengths
    ]
    done = [0, 0]
    for counts in ((250, 80), (1, 5), (1, 1), (48, 0)):
        rows = [row for row in (0, 1) if counts[row]]
        parts = [slice(done[row], done[row] + counts[row]) for row in rows]
        backend.plan([Span(done[row], counts[row], tables[row]) for row in rows])
        given = [
            torch.cat([whole[row][i][part] for row, part in zip(rows, parts, strict=True)]) for i in range(3)
        ]
        got = backend.attend(0, *given).split([counts[row] for row in rows])
        for row, part, attended in zip(rows, parts, got, strict=True):
            expected = exact(*whole[row], window)[part]
            assert (attended.double() - expected).abs().max() < 0.03, (row, part)
            done[row] = part.stop


def exact(queries: T, keys: T, values: T, window: int | None) -> T:
    keys, values = (part.double().repeat_interleave(2, 1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) / 8**0.5
    distance = torch.arange(len(keys))[:, None] - torch.arange(len(keys))
    is_seen = (distance >= 0) & (distance < (window or len(keys)))
    weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(len(keys), -1)


def test_the_parameters_of_this_torch_are_those_of_the_stand_in() -> None:
    import inspect  # noqa: PLC0415

    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

    assert list(inspect.signature(varlen_attn).parameters) == list(inspect.signature(varlen_torch).parameters)
    assert TorchFlash.missing() is None
