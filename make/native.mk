# The native CPU step; see docs/native.md.

.PHONY: native native-sanitize

setup: native
native: $(VENV)/.installed ## Build the native CPU step into the cache (skipped while nothing changed)
	@$(RUN) -m services.engine.native

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

native-sanitize: setup ## Tests of the native step under AddressSanitizer and UBSan
	PAGEMESH_NATIVE_FLAGS="$(SANITIZE)" $(RUN) -m services.engine.native
	PAGEMESH_NATIVE_FLAGS="$(SANITIZE)" ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	$(BIN)/python -m pytest tests/unit/engine/test_native_step.py tests/unit/engine/test_native_formats.py
