"""FlashAttention by the library that is installed: generation 4, 3 or 2 of flash-attn, else torch's own copy.

One class a generation, each a row of the capability table. Generation 2 always runs with num_splits=1: split
over keys it gives wrong rows and NaN with block tables (github.com/Dao-AILab/flash-attention/issues/1217,
github.com/pytorch/torchtitan/issues/3235).
"""

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import torch

from services.engine.attention.backend import AttentionShape, Capabilities
from services.engine.attention.paged import ANY_BLOCK, SM80_ON, PagedAttention

_HALVES = frozenset({torch.bfloat16, torch.float16})
_HEADS = frozenset(range(8, 129, 8))


def _table(archs: frozenset[int], block_sizes: frozenset[int]) -> Capabilities:
    return Capabilities(
        devices=frozenset({"cuda"}),
        archs=archs,
        block_sizes=block_sizes,
        head_sizes=_HEADS,
        kv_dtypes=_HALVES,
        has_window=True,
        is_row_invariant=False,
    )


class _Flash(PagedAttention):
    """Stores, then calls one library function on what `_call` makes of the step."""

    name: ClassVar[str] = "flash"
    capabilities: ClassVar[Capabilities]
    kernel: ClassVar[str]
    trace_names: ClassVar[tuple[str, ...]]
    module: ClassVar[str]
    function: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    """Parameters that the function must take: older releases lack them."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._function: Any = getattr(import_module(self.module), self.function)

    @classmethod
    def missing(cls) -> str | None:
        try:
            # find_spec imports parents, which may fail on a machine without CUDA.
            if find_spec(cls.module) is None:
                return f"{cls.module} is not installed"
            function = getattr(import_module(cls.module), cls.function)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            return f"{cls.module} cannot be imported ({type(error).__name__})"
        lacking = cls.needs - set(inspect.signature(function).parameters)
        return f"{cls.module}.{cls.function} has no {sorted(lacking)[0]}" if lacking else None

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        stored_keys, stored_values = self._store(layer, keys, values)
        return self._call(queries, stored_keys, stored_values).reshape(len(queries), -1)

    def _call(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Takes [tokens, heads, head_size] and the pool; gives the queries' shape."""
        raise NotImplementedError

    @property
    def _window(self) -> tuple[int, int]:
        """Positions seen to the left and the right; (-1, 0) is plain causal, (-1, -1) would see all."""
        return (-1, 0) if self.shape.window is None else (self.shape.window - 1, 0)

    @property
    def _max_queries(self) -> int:
        return max(self.inputs.lengths)


class TorchFlash(_Flash):
    """`varlen_attn` of torch 2.12 or newer: a copy of generation 2."""

    capabilities: ClassVar[Capabilities] = _table(SM80_ON, frozenset({256}))
    kernel: ClassVar[str] = f"torch {torch.__version__} varlen_attn, generation 2"
    trace_names: ClassVar[tuple[str, ...]] = ("_flash_attention_forward", "flash_fwd")
    module = "torch.nn.attention.varlen"
    function = "varlen_attn"
    needs = frozenset({"block_table", "seqused_k", "window_size", "num_splits", "enable_gqa"})

    def _call(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs
        attended: torch.Tensor = self._function(
            queries,
            keys,
            values,
            inputs.query_starts,
            None,
            self._max_queries,
            inputs.max_keys,
            window_size=self._window,
            enable_gqa=True,
            seqused_k=inputs.ends,
            block_table=inputs.tables,
            num_splits=1,
        )
        return attended


class Flash2(_Flash):
    """flash-attn 2.x. Its varlen function takes no num_splits, and splits only where every row has one token:
    such steps go through the function that takes it."""

    capabilities: ClassVar[Capabilities] = _table(SM80_ON, frozenset({256}))
    kernel: ClassVar[str] = "flash-attn generation 2"
    trace_names: ClassVar[tuple[str, ...]] = ("flash_fwd",)
    module = "flash_attn"
    function = "flash_attn_with_kvcache"
    needs = frozenset({"block_table", "cache_seqlens", "window_size", "num_splits"})

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._varlen: Any = import_module(self.module).flash_attn_varlen_func

    def _call(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs
        if self._max_queries == 1:
            attended: torch.Tensor = self._function(
                queries[:, None],
                keys,
                values,
                cache_seqlens=inputs.ends,
                block_table=inputs.tables,
                causal=True,
                window_size=self._window,
                num_splits=1,
            )
            return attended
        attended = self._varlen(
            queries,
            keys,
            values,
            inputs.query_starts,
            self._key_starts(),
            self._max_queries,
            inputs.max_keys,
            causal=True,
            window_size=self._window,
            block_table=inputs.tables,
        )
        return attended

    def _key_starts(self) -> torch.Tensor:
        """With a block table only the differences count: they are the rows' ends."""
        return torch.nn.functional.pad(self.inputs.ends.cumsum(0, dtype=torch.int32), (1, 0))


class Flash3(_Flash):
    """flash-attn 3 (the folder `hopper` of its repository); for sm_90 alone, any block."""

    capabilities: ClassVar[Capabilities] = _table(frozenset({90}), ANY_BLOCK)
    kernel: ClassVar[str] = "flash-attn generation 3"
    trace_names: ClassVar[tuple[str, ...]] = ("FlashAttnFwdSm90", "flash_attn_3::")
    module = "flash_attn_interface"
    function = "flash_attn_with_kvcache"
    needs = frozenset({"page_table", "cache_seqlens", "cu_seqlens_q", "window_size", "num_splits"})

    def _call(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs
        attended: torch.Tensor = self._function(
            queries,
            keys,
            values,
            cache_seqlens=inputs.ends,
            page_table=inputs.tables,
            cu_seqlens_q=inputs.query_starts,
            max_seqlen_q=self._max_queries,
            causal=True,
            window_size=self._window,
            num_splits=1,
        )
        return attended


class Flash4(_Flash):
    """flash-attn 4 (CuTe); block tables need sm_90 or newer, any block."""

    capabilities: ClassVar[Capabilities] = _table(frozenset({90, 100, 103, 110}), ANY_BLOCK)
    kernel: ClassVar[str] = "flash-attn generation 4"
    trace_names: ClassVar[tuple[str, ...]] = ("FlashAttentionForward", "flash_fwd_sm")
    module = "flash_attn.cute"
    function = "flash_attn_varlen_func"
    needs = frozenset({"page_table", "seqused_k", "cu_seqlens_q", "window_size", "num_splits"})

    def _call(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs
        given = self._function(
            queries,
            keys,
            values,
            cu_seqlens_q=inputs.query_starts,
            seqused_k=inputs.ends,
            max_seqlen_q=self._max_queries,
            page_table=inputs.tables,
            causal=self.shape.window is None,
            window_size=(None, None) if self.shape.window is None else self._window,
            num_splits=1,
        )
        # Releases differ in whether the log-sum-exp comes along.
        attended: torch.Tensor = given[0] if isinstance(given, tuple) else given
        return attended


GENERATIONS: tuple[type[_Flash], ...] = (Flash4, Flash3, Flash2, TorchFlash)
"""In order of preference."""
