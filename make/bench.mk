# Benchmarks that print ratios; none is a test.

.PHONY: bench-native bench-encode-hop bench-tokenizer bench-session bench-scheduler bench-mesh

bench-tokenizer: model ## 1 KiB encoded warm; a new turn behind 16,000 tokens against the whole
	$(RUN) -m bench.tokenizer_encode

bench-encode-hop: model ## What it costs that the tokenizer is a process of its own
	$(RUN) -m bench.encode_hop

bench-session: model ## Second turn's time to first token against BYPASS, 250 to 4,000 tokens
	$(RUN) -m bench.session_ttft

bench-scheduler: setup ## One placement decision with 10,000 queued and 1, 10, 100 engines
	$(RUN) -m bench.scheduler_decision

bench-mesh: model ## CPU time per token of the processes beside compute, and the time to first token they add
	$(RUN) -m bench.mesh_cost

.PHONY: quality
quality: model ## Every option against fp32: top-1, KL, first divergence, worst tokens; fails where a gate is missed
	$(RUN) -m bench.quality $(QUALITY)

bench-native: model ## The native step alone: decode by rows, prefill by chunk, beside torch
	$(RUN) -m bench.native_step --torch
