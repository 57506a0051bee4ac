"""Paged attention: online softmax (arXiv:2205.14135) over a row's keys in tiles of absolute positions.

One program has one key head and a tile of a row's tokens, each with the query heads of that key head; decode
is a tile with one token. Tiles of keys begin at multiples of TILE_N whatever the tile of queries is, and one
that a query does not see leaves its sums as they are to the bit: so a row depends neither on its neighbours
nor on how its prompt was cut. Positions that no query of the tile sees are not read.

Numbers that change from step to step are not specialised on: a new kernel would be compiled while serving.
"""

import triton
import triton.language as tl


@triton.jit
def _attend_range(
    queries,
    position,
    key_ptr,
    value_ptr,
    table_ptr,
    scale,
    pool_stride,
    first_key,
    stop_key,
    begin,
    end,
    WINDOW: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Sums over keys begin..end-1 (begin a multiple of TILE_N) in exponents of two; `scale` holds log2(e).

    Gives unnormalised values [TILE_M, HEAD_PAD], the maximum and the weight of each query [TILE_M], float32.
    """
    dims = tl.arange(0, HEAD_PAD)
    top = tl.full([TILE_M], float("-inf"), tl.float32)
    weight = tl.zeros([TILE_M], tl.float32)
    sums = tl.zeros([TILE_M, HEAD_PAD], tl.float32)
    for tile in range(begin, end, TILE_N):
        key = tile + tl.arange(0, TILE_N)
        is_live = (key >= first_key) & (key < stop_key)
        block = tl.load(table_ptr + key // BLOCK, mask=is_live, other=0)
        slot = block.to(tl.int64) * BLOCK + key % BLOCK
        offsets = slot[:, None] * pool_stride + dims[None, :]
        is_read = is_live[:, None] & (dims < HEAD)[None, :]
        keys = tl.load(key_ptr + offsets, mask=is_read, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        is_seen = is_live[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        values = tl.load(value_ptr + offsets, mask=is_read, other=0.0)
        weight = weight * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        top = higher
    return sums, top, weight


@triton.jit(do_not_specialize=["table_stride"])
def attend_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    query_start_ptr,
    end_ptr,
    tile_row_ptr,
    tile_first_ptr,
    scale,
    query_stride,
    pool_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Grid (tiles, key heads). `scale` holds log2(e); `out` is [tokens, HEADS, HEAD] without gaps."""
    row = tl.load(tile_row_ptr + tl.program_id(0))
    first = tl.load(tile_first_ptr + tl.program_id(0))
    token = tl.load(query_start_ptr + row)
    length = tl.load(query_start_ptr + row + 1) - token
    origin = tl.load(end_ptr + row) - length
    kv_head = tl.program_id(1)

    lanes = tl.arange(0, TILE_M)
    dims = tl.arange(0, HEAD_PAD)
    offset = first + lanes // GROUP_PAD
    head = kv_head * GROUP + lanes % GROUP_PAD
    is_query = (offset < length) & (lanes % GROUP_PAD < GROUP)
    is_read = is_query[:, None] & (dims < HEAD)[None, :]
    at = (token + offset).to(tl.int64)
    where = at[:, None] * query_stride + head[:, None] * HEAD + dims[None, :]
    queries = tl.load(query_ptr + where, mask=is_read, other=0.0)

    last = tl.minimum(first + TILE_M // GROUP_PAD, length) - 1
    stop_key = origin + last + 1
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(origin + first - WINDOW + 1, 0)
    sums, _, weight = _attend_range(
        queries,
        origin + offset,
        key_ptr + kv_head * HEAD,
        value_ptr + kv_head * HEAD,
        table_ptr + row.to(tl.int64) * table_stride,
        scale,
        pool_stride,
        first_key,
        stop_key,
        first_key // TILE_N * TILE_N,
        stop_key,
        WINDOW,
        HEAD,
        HEAD_PAD,
        BLOCK,
        TILE_M,
        TILE_N,
    )
    out = at[:, None] * (HEADS * HEAD) + head[:, None] * HEAD + dims[None, :]
    weight = tl.where(is_query, weight, 1.0)
    tl.store(out_ptr + out, (sums / weight[:, None]).to(out_ptr.dtype.element_ty), mask=is_read)


@triton.jit(do_not_specialize=["table_stride", "max_parts"])
def decode_part_kernel(
    part_ptr,
    part_top_ptr,
    part_weight_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    end_ptr,
    scale,
    query_stride,
    pool_stride,
    table_stride,
    max_parts,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """Grid (rows, key heads, n): one token a row, keys cut at multiples of PART, every nth part a program.

    Parts lie at fixed positions, so how many rows there are changes nothing. Results are
    [rows, HEADS, max_parts(, HEAD)] float32.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    stop_key = tl.load(end_ptr + row)
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(stop_key - WINDOW, 0)
    lanes = tl.arange(0, TILE_M)
    dims = tl.arange(0, HEAD_PAD)
    head = kv_head * GROUP + lanes
    is_read = (lanes < GROUP)[:, None] & (dims < HEAD)[None, :]
    where = row.to(tl.int64) * query_stride + head[:, None] * HEAD + dims[None, :]
    queries = tl.load(query_ptr + where, mask=is_read, other=0.0)
    position = tl.full([TILE_M], 0, tl.int32) + (stop_key - 1)

    start = first_key // PART + tl.program_id(2)
    for part in range(start, tl.cdiv(stop_key, PART), tl.num_programs(2)):
        begin = tl.maximum(part * PART, first_key // TILE_N * TILE_N)
        sums, top, weight = _attend_range(
            queries,
            position,
            key_ptr + kv_head * HEAD,
            value_ptr + kv_head * HEAD,
            table_ptr + row.to(tl.int64) * table_stride,
            scale,
            pool_stride,
            first_key,
            stop_key,
            begin,
            tl.minimum(part * PART + PART, stop_key),
            WINDOW,
            HEAD,
            HEAD_PAD,
            BLOCK,
            TILE_M,
            TILE_N,
        )
        at = (row.to(tl.int64) * HEADS + head) * max_parts + part
        tl.store(part_ptr + at[:, None] * HEAD + dims[None, :], sums, mask=is_read)
        tl.store(part_top_ptr + at, top, mask=lanes < GROUP)
        tl.store(part_weight_ptr + at, weight, mask=lanes < GROUP)


@triton.jit(do_not_specialize=["max_parts"])
def decode_join_kernel(
    out_ptr,
    part_ptr,
    part_top_ptr,
    part_weight_ptr,
    end_ptr,
    max_parts,
    HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PART: tl.constexpr,
):
    """Grid (rows, HEADS): joins the parts of one query in the order of their positions."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    stop_key = tl.load(end_ptr + row)
    first_part = 0
    if WINDOW > 0:
        first_part = tl.maximum(stop_key - WINDOW, 0) // PART
    dims = tl.arange(0, HEAD_PAD)
    at = (row.to(tl.int64) * HEADS + head) * max_parts
    top = tl.load(part_top_ptr + at + first_part)
    weight = tl.load(part_weight_ptr + at + first_part)
    sums = tl.load(part_ptr + (at + first_part) * HEAD + dims, mask=dims < HEAD, other=0.0)
    for part in range(first_part + 1, tl.cdiv(stop_key, PART)):
        other = tl.load(part_top_ptr + at + part)
        higher = tl.maximum(top, other)
        old, new = tl.exp2(top - higher), tl.exp2(other - higher)
        weight = weight * old + tl.load(part_weight_ptr + at + part) * new
        sums = sums * old + tl.load(part_ptr + (at + part) * HEAD + dims, mask=dims < HEAD, other=0.0) * new
        top = higher
    out = (row.to(tl.int64) * HEADS + head) * HEAD + dims
    tl.store(out_ptr + out, (sums / weight).to(out_ptr.dtype.element_ty), mask=dims < HEAD)
