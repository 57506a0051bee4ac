"""Triton kernels. They are told what to compute by the modules that launch them; untyped, as Triton wants."""
