"""Attention over paged KV, by backend."""
