"""`python -m bench.load`."""

from bench.load.cli import app

app(prog_name="pagemesh bench")
