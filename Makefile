# Needs Python 3.11 or later and make; everything else goes into $(VENV). With uv (https://docs.astral.sh/uv) that
# takes seconds, and it brings Python as well; pip does it too.
# Kept to what GNU make 3.81 knows, which is what macOS ships.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# mlx comes with mlx-lm on a Mac and as an extra elsewhere: cpu, or cuda for an NVIDIA GPU.
ifeq ($(shell uname -s),Darwin)
EXTRAS ?=
else
EXTRAS ?= cpu
endif

# Asked for its version, since a shim of that name may have nothing behind it. `make serve UV=` takes pip.
UV := $(shell uv --version > /dev/null 2>&1 && echo uv)
# uv finds a Python by itself, unless one was named: on macOS `python3` is too old.
ifeq ($(origin PYTHON),file)
UV_PYTHON_WANTED := >=3.11
else
UV_PYTHON_WANTED := $(PYTHON)
endif

comma := ,
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# mlx computes small models on one core, so each core gets tests of its own.
PARALLEL := -n auto --dist worksteal

# What is installed: what serving needs, or also what the tests and checks need.
RUN_STAMP := $(VENV)/.installed$(EXTRAS:%=-%)
DEV_STAMP := $(RUN_STAMP)-dev
RUN := $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(RUN_STAMP))
DEV := $(DEV_STAMP)

.DEFAULT_GOAL := help
.PHONY: help setup test check format slow stress soak crash gpu clients bench docs demo serve chat dist clean distclean

help: ## List the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS='more arguments for the command, such as --port 9000']"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(DEV) ## Make .venv with everything the other targets need

test: $(DEV) ## Run the tests, all but slow, stress, soak, crash and gpu
	$(PYTEST) $(PARALLEL) $(ARGS)

check: $(DEV) ## Check style, format, types, import rules and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_imports.py tests/test_docs.py tests/test_prose.py

format: $(DEV) ## Sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

slow: $(DEV) ## Run the tests that take long
	$(PYTEST) $(PARALLEL) -m slow $(ARGS)

stress: $(DEV) ## Run long random tests against the naive twins; new examples every time
	HYPOTHESIS_PROFILE=long $(PYTEST) -m stress $(ARGS)

soak: $(DEV) ## Let 32 clients ask at once for 20 minutes (KEEPWARM_SOAK_S=60 for a minute)
	$(PYTEST) -s -m soak $(ARGS)

crash: $(DEV) ## Kill, cut the power and flip bits of the disk cache by the hundred; 15 minutes
	$(PYTEST) $(PARALLEL) -m crash $(ARGS)

clients: $(DEV) ## Install coding agents and SDKs into .clients and drive them against a server; needs npm
	mkdir -p .clients && cp tests/clients/package.json .clients/
	cd .clients && npm install --no-fund --no-audit --ignore-scripts --loglevel=error
ifeq ($(UV),)
	$(BIN)/python -m venv .clients/python
	.clients/python/bin/python -m pip install --quiet -r tests/clients/requirements.txt
else
	$(UV) venv --quiet --clear --python $(BIN)/python .clients/python
	$(UV) pip install --quiet --python .clients/python/bin/python -r tests/clients/requirements.txt
endif
	$(PYTEST) -m clients $(ARGS) tests/clients

# mlx's cpu and cuda builds write the same files, so CUDA has an environment of its own.
ifeq ($(shell uname -s),Darwin)
gpu: $(DEV) ## Run the tests that need a GPU: Metal on a Mac, CUDA (in .venv-cuda) elsewhere
	KEEPWARM_TEST_DEVICE=gpu $(PYTEST) -m gpu $(ARGS)
else
gpu:
	$(MAKE) setup VENV=.venv-cuda EXTRAS=cuda
	KEEPWARM_TEST_DEVICE=gpu .venv-cuda/bin/python -m pytest -m gpu $(ARGS)
endif

bench: $(DEV) ## Run every scenario with four small models beside mlx-lm; an hour on 2 cores
	$(BIN)/python -m bench.all $(ARGS)

docs: $(DEV) ## Make docs/benchmarks.md and its plots of what was measured
	$(BIN)/python -m bench.docs $(ARGS)

demo: $(RUN) ## Show a conversation with the built-in model and what the cache did for each turn
	$(BIN)/python examples/demo.py

serve: $(RUN) ## Serve the built-in model, or another: make serve MODEL=mlx-community/Qwen3-0.6B-4bit
	$(BIN)/keepwarm serve $(MODEL) $(ARGS)

chat: $(RUN) ## Talk to the built-in model, or to MODEL, in this terminal
	$(BIN)/keepwarm chat $(MODEL) $(ARGS)

dist: $(RUN) ## Build wheel and sdist, and try each in a bare environment
	$(call install,$(if $(EXTRAS),$(EXTRAS)$(comma))release)
	PYTHON=$(BIN)/python EXTRAS=$(EXTRAS) .ci/dist

clean: ## Remove caches and build outputs; keep .venv
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf .venv .venv-cuda

$(BIN)/python:
ifeq ($(UV),)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "keepwarm needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one (make PYTHON=python3.12 ...), or install uv, which brings one." >&2; exit 1; }
	@# A half-made venv would pass for a whole one the next time.
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }
else
	$(UV) venv --quiet --allow-existing --python '$(UV_PYTHON_WANTED)' $(VENV)
endif

# $(call install,EXTRAS): keepwarm itself in editable form, and what it needs.
ifeq ($(UV),)
define install
	@# A venv that uv made has no pip.
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(BIN)/python -m ensurepip > /dev/null
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-compile --editable '.$(1:%=[%])'
endef
else
define install
	$(UV) pip install --quiet --python $(BIN)/python --editable '.$(1:%=[%])'
endef
endif
BY := $(if $(UV),by uv,by pip; uv would be faster)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing what serving needs into $(VENV), $(BY)"
	$(call install,$(EXTRAS))
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing what serving and the tests need into $(VENV), $(BY)"
	$(call install,$(if $(EXTRAS),$(EXTRAS)$(comma))dev)
	@touch $@
