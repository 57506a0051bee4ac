"""Compiles every Triton kernel ahead of time for sm_80 and sm_90, without a GPU, and tells what came out.

    python -m bench.gpu_kernels --write docs/gpu.md

Registers and stack come from cuobjdump, which the triton wheel holds. A spill shows as stack.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.generated import table, write_between
from services.engine.attention.backend import AttentionShape
from services.engine.attention.triton import tiles_for
from services.engine.kernels.activation import gate_kernel
from services.engine.kernels.attention import attend_kernel, decode_join_kernel, decode_part_kernel
from services.engine.kernels.matmul import matmul_kernel
from services.engine.kernels.norm import add_norm_kernel

ARCHS = (80, 90)
SHARED_LIMITS = {80: 166_912, 90: 232_448}
"""Bytes of shared memory that a block may take."""
MOST_STACK_BYTES = 64
"""Of a thread: a few registers that spill outside the loop cost nothing, a tile costs everything."""
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with the constants of one model shape."""

    name: str
    function: Any
    types: Mapping[str, str]
    """Of the arguments that are no constants."""
    constants: Mapping[str, int]
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of it."""

    kernel: Kernel
    arch: int
    num_registers: int
    stack_bytes: int
    shared_bytes: int
    has_wgmma: bool


def attention_kernels() -> Iterator[Kernel]:
    """Head sizes with the groups of models that have them: SmolLM2, Qwen2-7B, Phi-2-like and Phi-3-like."""
    for head, heads, kv_heads in ((64, 9, 3), (128, 28, 4), (80, 32, 32), (96, 32, 32)):
        yield from _attention("bfloat16", head, heads, kv_heads, 0)
    yield from _attention("bfloat16", 128, 32, 8, 4096)
    yield from _attention("float16", 128, 28, 4, 0)
    yield from _attention("float32", 128, 28, 4, 0)


def _attention(dtype: str, head: int, heads: int, kv_heads: int, window: int) -> Iterator[Kernel]:
    group = heads // kv_heads
    pad = triton.next_power_of_2(group)
    meta = torch.device("meta")
    shape = AttentionShape(1, heads, kv_heads, head, 16, window or None, getattr(torch, dtype), meta)
    tile_m, tile_n = tiles_for(shape)
    name = f"{TYPES[dtype]} head {head}, {heads}/{kv_heads} heads" + (", window" if window else "")
    shared = {"HEADS": heads, "WINDOW": window, "HEAD": head, "HEAD_PAD": triton.next_power_of_2(head)}
    reads = {"GROUP": group, "BLOCK": 16, "TILE_N": tile_n}
    half, ints, wide = f"*{TYPES[dtype]}", "*i32", "*fp32"
    pool = {"query_ptr": half, "key_ptr": half, "value_ptr": half, "table_ptr": ints}
    strides = {"scale": "fp32", "query_stride": "i32", "pool_stride": "i32", "table_stride": "i32"}
    tiles = {"query_start_ptr": ints, "end_ptr": ints, "tile_row_ptr": ints, "tile_first_ptr": ints}
    yield Kernel(
        f"attend, {name}",
        attend_kernel,
        {"out_ptr": half, **pool, **tiles, **strides},
        {**shared, **reads, "GROUP_PAD": pad, "TILE_M": tile_m},
    )
    parts = {"part_ptr": wide, "part_top_ptr": wide, "part_weight_ptr": wide}
    yield Kernel(
        f"decode part, {name}",
        decode_part_kernel,
        {**parts, **pool, "end_ptr": ints, **strides, "max_parts": "i32"},
        {**shared, **reads, "PART": 256, "TILE_M": max(16, pad)},
    )
    yield Kernel(
        f"decode join, {name}",
        decode_join_kernel,
        {"out_ptr": half, **parts, "end_ptr": ints, "max_parts": "i32"},
        {**shared, "PART": 256},
        num_warps=1,
    )


def other_kernels() -> Iterator[Kernel]:
    """Of a model as wide as Qwen2-7B."""
    for name in ("bf16", "fp32"):
        half = f"*{name}"
        yield Kernel(
            f"residual and norm, {name}",
            add_norm_kernel,
            {
                "residual_ptr": "*fp32",
                "delta_ptr": half,
                "weight_ptr": half,
                "out_ptr": half,
                "size": "i32",
                "epsilon": "fp32",
            },
            {"HAS_DELTA": 1, "PAD": 4096},
            num_warps=8,
        )
        yield Kernel(
            f"gate, {name}",
            gate_kernel,
            {"out_ptr": half, "gate_up_ptr": half, "size": "i32"},
            {"TILE": 1024},
        )
        pointers = {f"{part}_ptr": half for part in ("out", "input", "weight", "bias")}
        numbers = dict.fromkeys(("num_rows", "num_outputs", "num_inputs", "input_stride"), "i32")
        for tile in (32, 128):
            yield Kernel(
                f"invariant product, {name}, {tile} outputs a tile",
                matmul_kernel,
                {**pointers, **numbers},
                {"HAS_BIAS": 1, "TILE_M": 64, "TILE_N": tile, "TILE_K": 64},
                num_stages=3,
            )


def compile_kernel(kernel: Kernel, arch: int) -> Compiled:
    """Runs the whole compiler, ptxas included."""
    names = kernel.function.arg_names
    signature = {name: kernel.types.get(name, "constexpr") for name in names}
    # What the launcher finds out by itself: pointers and the pool's strides are multiples of 16.
    divisible = [["tt.divisibility", 16]]
    is_aligned = [
        name.endswith(
            ("_ptr", "query_stride", "pool_stride", "input_stride", "size", "num_inputs", "num_outputs")
        )
        for name in names
    ]
    attributes = {(place,): divisible for place, ok in enumerate(is_aligned) if ok}
    source = ASTSource(kernel.function, signature, dict(kernel.constants), attributes)
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    registers, stack = _resources(made.asm["cubin"])
    has_wgmma = "wgmma.mma_async" in made.asm["ptx"]
    return Compiled(kernel, arch, registers, stack, made.metadata.shared, has_wgmma)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", run.stdout)
    assert found is not None, run.stdout
    return int(found[1]), int(found[2])


def lines_of(compiled: list[Compiled]) -> list[str]:
    """As Markdown."""
    head = ("kernel", "arch", "registers", "stack bytes (spills)", "shared memory KiB", "wgmma")
    rows = [
        (
            one.kernel.name,
            f"sm_{one.arch}",
            str(one.num_registers),
            str(one.stack_bytes),
            f"{one.shared_bytes / 1024:.1f}",
            "yes" if one.has_wgmma else "–",
        )
        for one in compiled
    ]
    return [f"triton {triton.__version__}, {len(compiled)} kernels", "", *table(head, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="Markdown file whose table of kernels is written anew")
    parser.add_argument("--only", default="", help="Kernels whose name holds this")
    options = parser.parse_args()
    every = [*attention_kernels(), *other_kernels()]
    kernels = [kernel for kernel in every if options.only in kernel.name]
    compiled = [compile_kernel(kernel, arch) for kernel in kernels for arch in ARCHS]
    lines = lines_of(compiled)
    print("\n".join(lines))
    if options.write is not None:
        write_between(options.write, "kernels", lines)
    if bad := [f"{one.kernel.name} (sm_{one.arch})" for one in compiled if not _fits(one)]:
        raise SystemExit(f"too much shared memory, or registers spilled: {'; '.join(bad)}")


def _fits(one: Compiled) -> bool:
    return one.shared_bytes <= SHARED_LIMITS[one.arch] and one.stack_bytes <= MOST_STACK_BYTES


if __name__ == "__main__":
    main()
