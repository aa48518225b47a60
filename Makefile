# Everything a fresh checkout needs. `make help` lists the targets.
#
# Variables (give them on the command line or in the environment):
#   PYTHON      the interpreter that .venv is made from: 3.10, 3.11 or 3.12
#   TORCH_ARGS  extra pip arguments for PyTorch, for example an index of CPU-only
#               builds; the default index may hold a CUDA build of several GB
#   PIP_ARGS    extra pip arguments for every install
#   PARALLEL    how pytest spreads the tests; empty: one after the other
#   PYTEST_ARGS, DEMO_ARGS  passed on to pytest and to `specswitch demo`

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
SGLANG_VERSION := 0.5.12.post1
LOCK := requirements/cpu-$(SGLANG_VERSION)
TORCH_ARGS ?=
PIP_ARGS ?=
# Tests of one file stay together, so that a server they share is started once, and files keep their
# order: those with engines come first, and the short ones fill the end evenly.
PARALLEL ?= -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=
DEMO_ARGS ?= --out demo-report

BIN := $(VENV)/bin
NATIVE := $(VENV)/native
# In a log without a terminal, pip's bars are thousands of useless lines.
PIP = $(BIN)/python -m pip --disable-pip-version-check install $(if $(CI),--quiet --progress-bar off) $(PIP_ARGS)

.PHONY: help venv demo test test-native test-unit lint format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environment -----------------------------------------------------------

venv: $(VENV)/.installed ## Create or update .venv (2.7 GB with a CPU build of PyTorch)

$(VENV)/.created:
	@$(PYTHON) scripts/check_python.py
	@echo "[1/4] creating $(VENV) from $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# PyTorch comes first and by itself: it is the one package that has CPU and CUDA
# builds of the same version, so it is the one for which TORCH_ARGS is meant.
$(VENV)/.locked: $(VENV)/.created $(LOCK).txt
	@echo "[2/4] installing PyTorch"
	@$(PIP) $(TORCH_ARGS) "$$(grep -o '^torch==[^ ;]*' $(LOCK).txt)"
	@echo "[3/4] installing the pinned packages of $(LOCK).txt"
	@$(PIP) -r $(LOCK).txt
	@touch $@

# Without dependencies: SGLang pins CUDA packages that a CPU cannot install, and
# what it imports on a CPU is in the lock file.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@echo "[4/4] installing SGLang $(SGLANG_VERSION) and specswitch"
	@$(PIP) --no-deps "sglang==$(SGLANG_VERSION)"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# A copy of the engine that stands before the installed one on PYTHONPATH.
$(NATIVE)/.patched: $(VENV)/.installed $(wildcard patches/sglang-$(SGLANG_VERSION)/*)
	@echo "copying SGLang to $(NATIVE), to be patched"
	@rm -rf $(NATIVE) && mkdir $(NATIVE)
	@cp -a $(VENV)/lib/python3.*/site-packages/sglang{,-$(SGLANG_VERSION).dist-info} $(NATIVE)
	@$(BIN)/specswitch patch apply --site-packages $(NATIVE)
	@touch $@

lock: ## Resolve the .in file to exact versions again (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	@cd requirements && uv pip compile --universal --python-version 3.10 --only-binary :all: \
		--annotation-style line --custom-compile-command "make lock" --quiet \
		$(addprefix --no-emit-package ,$(CUDA_PACKAGES)) \
		$(notdir $(LOCK)).in --output-file $(notdir $(LOCK)).txt

# Which of these are needed depends on the build of PyTorch, which pins them itself.
CUDA_PACKAGES := cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti \
	cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 \
	nccl-cu13 nvjitlink nvshmem-cu13 nvtx)

# --- what to do with it ----------------------------------------------------

demo: venv ## Serve a tiny model under changing load; writes demo-report/
	@$(BIN)/specswitch demo $(DEMO_ARGS)

# Both runs are made, whatever the first one finds.
test: venv $(NATIVE)/.patched ## All tests that run without a GPU; those with an engine also on a patched one
	@failed=0; \
	$(TEST) -m "not gpu and not multigpu" $(PARALLEL) $(PYTEST_ARGS) || failed=$$?; \
	$(TEST_NATIVE) || failed=$$?; \
	exit $$failed

test-native: venv $(NATIVE)/.patched ## The engine tests on an engine with the native patch
	@$(TEST_NATIVE)

TEST = $(BIN)/python -m pytest
# What PYTEST_ARGS choose may have no engine tests, of which pytest says 5.
TEST_NATIVE = echo "The engine tests, on a copy of the engine with the native patch (patches/README.md):"; \
	PYTHONPATH="$(abspath $(NATIVE))$${PYTHONPATH:+:$$PYTHONPATH}" SPECSWITCH_TEST_NATIVE=1 \
	$(TEST) -m "engine and not gpu and not multigpu" $(PARALLEL) $(PYTEST_ARGS) \
	$(if $(PYTEST_ARGS),|| [ $$? -eq 5 ])

test-unit: venv ## Unit, property and CLI tests only (seconds)
	@$(BIN)/python -m pytest tests/unit $(PARALLEL) $(PYTEST_ARGS)

lint: venv ## Ruff (rules and format) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: venv ## Let ruff fix and format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove .venv, caches and reports
	rm -rf $(VENV) demo-report dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
