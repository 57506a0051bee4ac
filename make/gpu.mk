# What concerns a GPU; docs/gpu.md.

.PHONY: gpu-check gpu-kernels

gpu-check: setup ## On a GPU: every backend against float64, step times, invariance; on a CPU the same, small
	@$(RUN) -m bench.gpu_check $(GPU)

gpu-kernels: setup ## Compile every Triton kernel for sm_80 and sm_90 and write what came out into docs/gpu.md
	$(RUN) -m bench.gpu_kernels --write docs/gpu.md
