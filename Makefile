# Needs Python 3.11 or later and make; everything else goes into $(VENV).
# Kept to what GNU make 3.81 knows, which is what macOS ships.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# mlx comes with mlx-lm on a Mac and as an extra elsewhere: cpu, or cuda for an NVIDIA GPU.
ifeq ($(shell uname -s),Darwin)
EXTRAS ?= dev
else
EXTRAS ?= cpu,dev
endif

comma := ,
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# mlx computes small models on one core, so each core gets tests of its own.
PARALLEL := -n auto --dist worksteal
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

.DEFAULT_GOAL := help
.PHONY: help setup test check format slow stress soak gpu bench docs demo serve chat clean distclean

help: ## List the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS='more arguments for the command, such as --port 9000']"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv with everything the other targets need

test: $(STAMP) ## Run the tests, all but slow, stress, soak and gpu
	$(PYTEST) $(PARALLEL) $(ARGS)

check: $(STAMP) ## Check style, format, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_imports.py

format: $(STAMP) ## Sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

slow: $(STAMP) ## Run the tests that take long
	$(PYTEST) $(PARALLEL) -m slow $(ARGS)

stress: $(STAMP) ## Run long random tests against the naive twins; new examples every time
	HYPOTHESIS_PROFILE=long $(PYTEST) -m stress $(ARGS)

soak: $(STAMP) ## Let 32 clients ask at once for 20 minutes (KEEPWARM_SOAK_S=60 for a minute)
	$(PYTEST) -s -m soak $(ARGS)

# mlx's cpu and cuda builds write the same files, so CUDA has an environment of its own.
ifeq ($(shell uname -s),Darwin)
gpu: $(STAMP) ## Run the tests that need a GPU: Metal on a Mac, CUDA (in .venv-cuda) elsewhere
	KEEPWARM_TEST_DEVICE=gpu $(PYTEST) -m gpu $(ARGS)
else
gpu:
	$(MAKE) setup VENV=.venv-cuda EXTRAS=cuda,dev
	KEEPWARM_TEST_DEVICE=gpu .venv-cuda/bin/python -m pytest -m gpu $(ARGS)
endif

bench: $(STAMP) ## Run every scenario with four small models beside mlx-lm; an hour on 2 cores
	$(BIN)/python -m bench.all $(ARGS)

docs: $(STAMP) ## Make docs/benchmarks.md and its plots of what was measured
	$(BIN)/python -m bench.docs $(ARGS)

demo: $(STAMP) ## Show a conversation with the built-in model and what the cache did for each turn
	$(BIN)/python examples/demo.py

serve: $(STAMP) ## Serve the built-in model, or another: make serve MODEL=mlx-community/Qwen3-0.6B-4bit
	$(BIN)/keepwarm serve $(MODEL) $(ARGS)

chat: $(STAMP) ## Talk to the built-in model, or to MODEL, in this terminal
	$(BIN)/keepwarm chat $(MODEL) $(ARGS)

clean: ## Remove caches and build outputs; keep .venv
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf .venv .venv-cuda

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "keepwarm needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@# A half-made venv would pass for a whole one the next time.
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (the first time takes a minute or two)"
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@
