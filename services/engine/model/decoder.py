"""One forward pass of a Llama-family decoder over flat tokens of many sequences.

Knows no requests, blocks or sampling: where keys and values lie is the attention's matter.
"""

from typing import Protocol

import torch
import torch.nn.functional as F

from services.engine.model.config import DecoderConfig
from services.engine.model.rope import inverse_frequencies, rotate, rotation
from services.engine.model.weights import DecoderWeights, LayerWeights, Linear


class LayerAttention(Protocol):
    """Stores a layer's new keys and values and attends, each token to its own sequence's past and itself."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Takes [tokens, heads, head_size] each; gives [tokens, query heads * head_size]."""


class Decoder:
    """Pre-norm decoder with rotary positions, grouped-query attention and a gated MLP."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights) -> None:
        self._config = config
        self._weights = weights
        self._frequencies = inverse_frequencies(config.rope, config.head_size).to(weights.embedding.device)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """Takes ids and absolute positions [tokens]; gives the final hidden states [tokens, hidden]."""
        hidden = F.embedding(ids, self._weights.embedding)
        cosines, signed_sines = rotation(positions, self._frequencies, hidden.dtype)
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._project(layer, hidden, cosines, signed_sines)
            attended = attention.attend(index, queries, keys, values)
            hidden = hidden + _apply(layer.attention_out, attended)
            hidden = hidden + self._mlp(layer, hidden)
        return self._norm(hidden, self._weights.final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes final hidden states [rows, hidden]; gives [rows, embedding_size]."""
        return F.linear(hidden, self._weights.head)

    def _project(
        self, layer: LayerWeights, hidden: torch.Tensor, cosines: torch.Tensor, signed_sines: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        c = self._config
        fused = _apply(layer.qkv, self._norm(hidden, layer.attention_norm)).view(len(hidden), -1, c.head_size)
        turned, values = fused[:, : -c.num_kv_heads], fused[:, -c.num_kv_heads :]
        if layer.head_norm is not None:
            turned = F.rms_norm(turned, (c.head_size,), None, c.norm_epsilon) * layer.head_norm
        turned = rotate(turned, cosines, signed_sines)
        return turned[:, : c.num_heads], turned[:, c.num_heads :], values

    def _mlp(self, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = _apply(layer.gate_up, self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return _apply(layer.down, F.silu(gate) * up)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, (self._config.hidden_size,), weight, self._config.norm_epsilon)


def _apply(linear: Linear, inputs: torch.Tensor) -> torch.Tensor:
    return F.linear(inputs, linear.weight, linear.bias)
