"""`make compare-sizes` at a tiny size: the model is whole in every system's eyes, the ratio is of pairs."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bench.compare import random_models
from bench.compare.measurement import Measurement
from bench.compare.results import Results
from bench.compare.sizes import lines_of
from services.contract.model_folder import open_model_folder, resolve_model

TINY = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


def test_every_id_of_a_random_model_has_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_models, "SHAPES", {"tiny": TINY})
    default = resolve_model("smollm2").resolve()
    folder = random_models.random_model(tmp_path, "tiny", default, lambda line: None)
    assert open_model_folder(folder).vocab_size == random_models.VOCAB_SIZE
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (folder, default))
    assert all(ours.decode([number]) for number in (49_152, 100_000, random_models.VOCAB_SIZE - 1))
    text = "As plain as ever: qx100000, 12 and so on."
    assert ours(text).input_ids == theirs(text).input_ids
    made = (folder / "model.safetensors").stat().st_mtime_ns
    again = random_models.random_model(tmp_path, "tiny", default, lambda line: None)
    assert (again / "model.safetensors").stat().st_mtime_ns == made


def test_a_shape_has_rates_and_their_ratio() -> None:
    def row(key: str, number: int, rate: float) -> Measurement:
        return Measurement(key, number, 16, rate, (1.0,), 1.0, 0.1, 0, 0.1, 1.0, 1.0)

    own = [row("pagemesh: bf16", number, 30) for number in (1, 2)]
    theirs = [row("vLLM: bound", number, 20) for number in (1, 2)]
    assert lines_of("0.5B", Results(own), (16,)) == [("0.5B", "pagemesh: bf16", "30.0 tok/s")]
    assert lines_of("0.5B", Results([*own, *theirs]), (1, 16))[1:] == [
        ("0.5B", "vLLM", "–", "20.0 tok/s"),
        ("0.5B", "ratio", "–", "1.50 × [1.50, 1.50]"),
    ]
