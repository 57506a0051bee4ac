"""Quantizers: how far a value may move, what is exact, and GGUF blocks that keep every code."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from services.contract.model_folder import ModelFolderError
from services.engine.quantization.gguf_file import GgufFile
from services.engine.quantization.groups import (
    GROUP,
    GroupedRows,
    join_rows,
    quantize_int4,
    quantize_int8_groups,
)
from services.engine.quantization.kv import quantize_heads
from services.engine.quantization.rows import HALF, multiply, quantize_rows, split_rows


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_int8_rows_move_no_value_by_more_than_half_a_step() -> None:
    weight = torch.randn(40, 96) * torch.rand(40, 1)
    quantized = quantize_rows(weight)
    moved = (quantized.dequantize() - weight).abs()
    assert (moved <= quantized.scales[:, None] * 0.5001).all()
    assert (quantized.codes.abs().amax(dim=1) == 127).all()


def test_a_row_of_zeros_stays_zeros() -> None:
    assert not quantize_rows(torch.zeros(2, 32)).dequantize().any()
    split = split_rows(torch.zeros(2, 32))
    assert not (split.high.any() or split.low.any() or split.scales.any())


def test_two_halves_hold_fifteen_bits() -> None:
    rows = torch.randn(30, 200) * 10.0 ** torch.arange(-3.0, 3.0).repeat(5)[:, None]
    split = split_rows(rows)
    codes = HALF * split.high.int() + split.low.int()
    assert codes.abs().amax() == 127 * HALF
    assert split.low.amin() >= -64
    assert split.low.amax() <= 63
    moved = (codes * split.scales[:, None] - rows).abs()
    assert (moved <= split.scales[:, None] * 0.51).all()


def test_a_row_that_is_not_finite_spoils_only_itself() -> None:
    rows = torch.randn(3, 64)
    rows[1, 5], rows[2, 5] = torch.nan, torch.inf
    product = multiply(split_rows(rows), quantize_rows(torch.randn(8, 64)))
    assert product[0].isfinite().all()
    assert not product[1].isfinite().any()
    assert not product[2].isfinite().any()


def test_the_product_is_that_of_the_rounded_operands() -> None:
    weight, rows = torch.randn(24, 576), torch.randn(7, 576)
    quantized, split = quantize_rows(weight), split_rows(rows)
    exact = (HALF * split.high.double() + split.low.double()) * split.scales.double()[:, None]
    expected = exact @ (quantized.codes.double() * quantized.scales.double()[:, None]).T
    assert torch.allclose(multiply(split, quantized).double(), expected, rtol=1e-6, atol=1e-6)


def test_int4_groups_reach_from_least_to_largest() -> None:
    weight = torch.randn(16, 128) + torch.randn(16, 1)
    quantized = quantize_int4(weight)
    assert (quantized.bits, quantized.codes.dtype, quantized.scales.shape) == (4, torch.uint8, (16, 4))
    moved = (quantized.dequantize() - weight).unflatten(1, (-1, GROUP)).abs()
    assert (moved <= quantized.scales.float()[:, :, None] * 0.52 + 2e-3).all()
    constant = torch.full((2, 32), 0.5)
    assert torch.equal(quantize_int4(constant).dequantize(), constant)


def test_int8_groups_move_no_value_by_more_than_half_a_step() -> None:
    weight = torch.randn(16, 128)
    quantized = quantize_int8_groups(weight)
    moved = (quantized.dequantize() - weight).unflatten(1, (-1, GROUP)).abs()
    assert quantized.bits == 8
    assert (moved <= quantized.scales.float()[:, :, None] * 0.56).all()


def test_heads_keep_one_scale_each() -> None:
    heads = torch.randn(5, 3, 64) * torch.rand(5, 3, 1)
    quantized = quantize_heads(heads)
    assert quantized.scales.shape == (5, 3)
    assert ((quantized.dequantize() - heads).abs() <= quantized.scales[..., None] * 0.5001).all()
    assert torch.equal(quantized.codes.bfloat16().to(torch.int8), quantized.codes)
    alone = quantize_heads(heads[2:3])
    assert torch.equal(alone.codes[0], quantized.codes[2])


HEADS, KV_HEADS, HEAD_SIZE, HIDDEN = 4, 2, 16, 64


def _write_gguf(path: Path, weights: dict[str, torch.Tensor], kind: gguf.GGMLQuantizationType) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    for name, weight in weights.items():
        writer.add_tensor(name, gguf.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _pair_up(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """As llama.cpp's converter stores query and key rows."""
    return weight.view(num_heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_keep_every_code(tmp_path: Path, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    query, down = torch.randn(HEADS * HEAD_SIZE, HIDDEN), torch.randn(HIDDEN, 96)
    stored = {"blk.2.attn_q.weight": _pair_up(query, HEADS), "blk.2.ffn_down.weight": down}
    _write_gguf(tmp_path / "model.gguf", stored, quantization)
    file = GgufFile(tmp_path / "model.gguf")
    for name, weight in (("self_attn.q_proj", query), ("mlp.down_proj", down)):
        found = file.grouped(f"model.layers.2.{name}.weight")
        assert found is not None
        expected = gguf.dequantize(gguf.quantize(weight.numpy(), quantization), quantization)
        assert np.array_equal(found.dequantize().numpy(), expected)
        assert found.bits == (8 if kind == "Q8_0" else 4)


def test_other_gguf_formats_are_no_blocks(tmp_path: Path) -> None:
    weight = torch.randn(HIDDEN, HIDDEN)
    _write_gguf(tmp_path / "model.gguf", {"output.weight": weight}, gguf.GGMLQuantizationType.F16)
    file = GgufFile(tmp_path / "model.gguf")
    assert "lm_head.weight" in file
    assert "model.norm.weight" not in file
    assert file.grouped("lm_head.weight") is None


def test_a_file_that_is_no_gguf_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelFolderError, match="is not a GGUF file"):
        GgufFile(tmp_path / "model.gguf")


def test_joined_rows_are_the_rows_of_all() -> None:
    upper, lower = quantize_int4(torch.randn(3, 64)), quantize_int4(torch.randn(5, 64))
    joined = join_rows([upper, lower])
    assert torch.equal(joined.dequantize(), torch.cat((upper.dequantize(), lower.dequantize())))
    eight: list[GroupedRows] = [quantize_int8_groups(torch.randn(3, 64))] * 2
    assert join_rows(eight).bits == 8
