"""Streams to engines and schedulers, calls to tokenizers."""
