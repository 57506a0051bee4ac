"""Decoder models in plain torch: configuration, weights, one forward pass over flat tokens."""
