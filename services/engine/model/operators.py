"""The decoder's arithmetic but attention, in plain torch; what a device does better replaces it by name."""

from typing import Protocol

import torch
import torch.nn.functional as F

from services.engine.model.weights import Linear


class Operators(Protocol):
    """Rows are tokens. A residual stream belongs to its forward pass: it may be changed in place."""

    def start(self, embedded: torch.Tensor) -> torch.Tensor:
        """Makes the residual stream of the embedded ids [rows, hidden]."""

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds delta to the residual; gives it and its RMS norm in the weights' type."""

    def project(self, inputs: torch.Tensor, linear: Linear) -> torch.Tensor:
        """[rows, in] to [rows, out]."""

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [rows, 2 * intermediate], gates first."""


class PlainOperators:
    """Implements Operators. Projections named in `unfused` are computed apart, to measure what that costs."""

    def __init__(self, unfused: frozenset[str] = frozenset()) -> None:
        self._unfused = unfused

    def start(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded

    def add_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if delta is not None:
            residual = residual + delta
        return residual, F.rms_norm(residual, (residual.shape[-1],), weight, epsilon)

    def project(self, inputs: torch.Tensor, linear: Linear) -> torch.Tensor:
        if linear.name not in self._unfused:
            return F.linear(inputs, linear.weight, linear.bias)
        cuts = list(linear.cuts)
        weights = torch.split(linear.weight, cuts)
        biases = [None] * len(cuts) if linear.bias is None else torch.split(linear.bias, cuts)
        parts = [F.linear(inputs, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        return torch.cat(parts, dim=-1)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
