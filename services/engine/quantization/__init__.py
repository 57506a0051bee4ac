"""How weights, activations and KV become small integers, and the arithmetic that kernels must match."""
