"""Memory of a torch decoder: its weights exactly, and about what the tensors of its steps take."""

import torch

from services.engine.model.config import DecoderConfig
from services.engine.model.weights import DecoderWeights, Linear


class Footprint:
    """Of one loaded decoder."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._itemsize = dtype.itemsize
        self._device = device
        self._activation_bytes = 0
        self.weight_bytes = sum({it.data_ptr(): it.nbytes for it in _all_tensors(weights)}.values())
        """An embedding that is the head as well counts once."""

    def note_step(self, num_tokens: int, num_sampled: int) -> int:
        """Gives the most that a step took so far.

        On a GPU what the allocator saw come and go; elsewhere about: the hidden states, the widest tensors of
        the MLP and the logits, which stand beside each other.
        """
        if self._device.type == "cuda":
            grown = torch.cuda.max_memory_allocated(self._device) - torch.cuda.memory_allocated(self._device)
        else:
            per_token = 3 * (self._config.hidden_size + self._config.intermediate_size)
            num_values = num_tokens * per_token + num_sampled * self._config.embedding_size
            grown = num_values * self._itemsize
        self._activation_bytes = max(self._activation_bytes, grown)
        return self._activation_bytes


def _all_tensors(weights: DecoderWeights) -> list[torch.Tensor]:
    tensors = [weights.embedding, weights.head, weights.final_norm]
    for layer in weights.layers:
        tensors += [layer.attention_norm, layer.mlp_norm]
        tensors += [] if layer.head_norm is None else [layer.head_norm]
        for linear in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
            tensors += _tensors(linear)
    return tensors


def _tensors(linear: Linear) -> list[torch.Tensor]:
    return [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
