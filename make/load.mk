# Measurements with the load tool, `pagemesh bench`; docs/benchmark.md.

.PHONY: bench-quick bench-versions

bench-quick: model ## Tokens/s and time to first token at 1 and 16 streams, 45 s; last line is JSON
	@$(RUN) -m bench.quick

bench-versions: model ## Two git versions measured alike: BASELINE=v1 TARGET=. [OPTIONS="--concurrency 32"]
	@$(RUN) -m bench.versions $(BASELINE) $(TARGET) $(OPTIONS)
