# Further checks of `make check`; see Makefile.

.PHONY: check-format
check: check-format

check-format: setup
	$(RUN) -m ruff format --check .
