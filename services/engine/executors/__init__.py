"""Ways to run a step, by name."""
