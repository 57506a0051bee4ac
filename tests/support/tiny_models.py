"""Makes tiny random models of the supported families in Hugging Face layout, with a byte-level tokenizer."""

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
EMBEDDING_SIZE = 272
"""Padded beyond the tokenizer's ids, as many real models are."""

FAMILIES: dict[str, tuple[type[Any], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "mistral": ("mistral", {}),
    "mistral window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
"""Families with what their configurations may ask for, by name: `make_tiny_model`'s arguments."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Plain ids of these models' vocabulary; no control token."""
    generator = random.Random(seed)
    return [generator.randrange(3, VOCAB_SIZE) for _ in range(count)]


def make_tiny_model(folder: Path, family: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Writes config, weights, tokenizer and template into `folder`; `changes` go into the configuration."""
    config_class, model_class = FAMILIES[family]
    options: dict[str, Any] = {
        "vocab_size": EMBEDDING_SIZE,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": family in {"llama", "qwen3"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,  # wide, so that greedy choices are far apart
    }
    if family == "mistral":
        options["sliding_window"] = None
    torch.manual_seed(seed)
    model = model_class(config_class(**(options | changes))).float()
    _shake(model)
    model.save_pretrained(folder)
    _make_tokenizer().save_pretrained(folder)
    return folder


def _shake(model: PreTrainedModel) -> None:
    """Biases and norms start as zeros and ones, under which a forgotten one would go unseen."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                noise = torch.randn_like(parameter) * 0.2
                parameter.copy_(noise if name.endswith("bias") else 1 + noise)


def _make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: len(SPECIAL_TOKENS) + index for index, piece in enumerate(alphabet)}
    vocab |= {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
