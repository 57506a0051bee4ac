"""From logits to ids: the position-keyed draw."""
