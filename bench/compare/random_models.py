"""Models of a known shape with random weights, in bf16: what size does to speed needs no training.

The tokenizer is the default model's, its vocabulary filled up with words that no text has, so that every id
that random weights draw has a text in every system.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

VOCAB_SIZE = 151_936
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)

SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "0.5B": {
            "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2,
        },
        "1.5B": {
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
            "num_attention_heads": 12, "num_key_value_heads": 2,
        },
    }
)  # fmt: skip
"""Qwen2's."""


def random_model(folder: Path, shape: str, default_model: Path, report: Callable[[str], None]) -> Path:
    """Made once."""
    target = folder / f"random-{shape}"
    if target.exists():
        return target
    report(f"making a random model of a {shape} shape")
    draft = folder / f"random-{shape}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    _write_weights(draft, SHAPES[shape])
    for name in _COPIED:
        shutil.copy(default_model / name, draft / name)
    _fill_vocabulary(draft / "tokenizer.json")
    draft.rename(target)
    return target


def _write_weights(folder: Path, shape: Mapping[str, Any]) -> None:
    """Imports here: only making a model needs them."""
    import torch  # noqa: PLC0415
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        config = Qwen2Config(
            vocab_size=VOCAB_SIZE, tie_word_embeddings=True, max_position_embeddings=8192,
            bos_token_id=1, eos_token_id=2, pad_token_id=2, **shape,
        )  # fmt: skip
        Qwen2ForCausalLM(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)


def _fill_vocabulary(file: Path) -> None:
    definition = json.loads(file.read_text())
    vocabulary = definition["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in definition["added_tokens"])}
    vocabulary |= {f"qx{number}": number for number in range(VOCAB_SIZE) if number not in taken}
    file.write_text(json.dumps(definition, ensure_ascii=False))
