"""Sections of `bench.gpu_check`: each measures one thing on the device and gives rows of a table."""
