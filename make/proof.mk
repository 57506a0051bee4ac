# Proof: commands whose tables are in docs/. ROUNDS=, DURATION= and PEERS= shorten or direct them.

.PHONY: compare compare-sizes kv five-standards

PEERS ?= peers.toml
ROUNDS ?= 5
DURATION ?= 15

compare: model ## Beside the peers that PEERS= names, in interleaved rounds (an hour; goes on where it was stopped)
	$(RUN) -m bench.compare --peers $(PEERS) --rounds $(ROUNDS) --duration $(DURATION) $(COMPARE)

compare-sizes: model ## The same on random weights of a 0.5B and a 1.5B shape, against vLLM
	$(RUN) -m bench.compare.sizes --peers $(PEERS) --rounds $(ROUNDS) --duration $(DURATION) $(COMPARE)

kv: model ## Paged against contiguous, the prefix cache's cost at 0% hits, the stall beside a long prompt, the rhythm
	$(RUN) -m bench.kv $(KV)

five-standards: model ## From the naive way up to all five standards, and each left out, in 5 minutes
	$(RUN) -m bench.five_standards $(FIVE)
