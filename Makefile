# Everything there is to do in a checkout. `make` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help setup model demo up test exactness mutants check protos wire-baseline readme clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

setup: $(VENV)/.installed ## Create .venv with pinned packages (skipped while nothing changed)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[services,bench,dev]'
	@touch $@

model: setup ## Fetch and convert the default model into the cache (skipped if it is there)
	@$(RUN) -m services.contract.default_model

demo: setup ## Kill the engine that answers, halfway; see the same answer
	@$(RUN) -m services.demo

up: setup ## Run the mesh until Ctrl-C
	@$(BIN)/pagemesh up

test: model check ## All checks and tests, the real model included
	$(RUN) -m pytest -n 2 --dist loadfile --durations=15

exactness: model ## The long exactness matrix, and 100,000 random operations on the running set
	PAGEMESH_OPERATIONS=100000 $(RUN) -m pytest tests/invariants
	PAGEMESH_EXACTNESS=full $(RUN) -m pytest -m exactness --durations=15

mutants: setup ## Seeded faults, each of which must turn a test red
	$(RUN) -m tests.mutants

check: setup ## Style, types, imports
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(BIN)/lint-imports

protos: setup ## Generate pagemesh/v1 from protos/
	$(RUN) -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. \
		--mypy_grpc_out=quiet:. protos/pagemesh/v1/*.proto

wire-baseline: setup ## Take the contracts as they are for the wire that may only grow
	cd protos && ../$(BIN)/buf build -o baseline.binpb

readme: setup ## Write the settings into the README
	$(RUN) docs/settings_table.py

clean: ## Remove .venv and caches; the model in its cache stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

-include make/*.mk
