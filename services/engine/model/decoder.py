"""One forward pass of a Llama-family decoder over flat tokens of many sequences.

Knows no requests, blocks or sampling: where keys and values lie is the attention's matter.
"""

from typing import Protocol

import torch
import torch.nn.functional as F

from services.engine.model.config import DecoderConfig
from services.engine.model.operators import Operators, PlainOperators
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

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, operators: Operators | None = None
    ) -> None:
        self._config = config
        self._weights = weights
        self._operators = operators or PlainOperators()
        self._head = Linear(weights.head, None)
        self._frequencies = inverse_frequencies(config.rope, config.head_size).to(weights.embedding.device)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attention: LayerAttention) -> torch.Tensor:
        """Takes ids and absolute positions [tokens]; gives the final hidden states [tokens, hidden]."""
        op, epsilon = self._operators, self._config.norm_epsilon
        embedded = F.embedding(ids, self._weights.embedding)
        cosines, signed_sines = rotation(positions, self._frequencies, embedded.dtype)
        residual, delta = op.start(embedded), None
        for index, layer in enumerate(self._weights.layers):
            residual, normed = op.add_norm(residual, delta, layer.attention_norm, epsilon)
            queries, keys, values = self._project(layer, normed, cosines, signed_sines)
            attended = attention.attend(index, queries, keys, values)
            delta = op.project(attended, layer.attention_out)
            residual, normed = op.add_norm(residual, delta, layer.mlp_norm, epsilon)
            delta = op.project(op.gate(op.project(normed, layer.gate_up)), layer.down)
        return op.add_norm(residual, delta, self._weights.final_norm, epsilon)[1]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Takes final hidden states [rows, hidden]; gives [rows, embedding_size]."""
        return self._operators.project(hidden, self._head)

    def _project(
        self, layer: LayerWeights, normed: torch.Tensor, cosines: torch.Tensor, signed_sines: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        c = self._config
        fused = self._operators.project(normed, layer.qkv).view(len(normed), -1, c.head_size)
        turned, values = fused[:, : -c.num_kv_heads], fused[:, -c.num_kv_heads :]
        if layer.head_norm is not None:
            turned = F.rms_norm(turned, (c.head_size,), None, c.norm_epsilon) * layer.head_norm
        turned = rotate(turned, cosines, signed_sines)
        return turned[:, : c.num_heads], turned[:, c.num_heads :], values
