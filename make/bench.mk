# Benchmarks that print ratios; none is a test.

.PHONY: bench-encode-hop bench-tokenizer bench-session bench-scheduler bench-gateway

bench-tokenizer: model ## 1 KiB encoded warm; a new turn behind 16,000 tokens against the whole
	$(RUN) -m bench.tokenizer_encode

bench-encode-hop: model ## What it costs that the tokenizer is a process of its own
	$(RUN) -m bench.encode_hop

bench-session: model ## Second turn's time to first token against BYPASS, 250 to 4,000 tokens
	$(RUN) -m bench.session_ttft

bench-scheduler: setup ## One placement decision with 10,000 queued and 1, 10, 100 engines
	$(RUN) -m bench.scheduler_decision

bench-gateway: model ## CPU time of the gateway per streamed token
	$(RUN) -m bench.gateway_cpu
