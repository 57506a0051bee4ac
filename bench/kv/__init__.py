"""What the KV cache is worth and what it costs: `make kv`."""
