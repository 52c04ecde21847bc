# Everything here runs from a fresh clone on a machine that has Python 3.11 or newer, and make.
#   make demo PYTHON=/path/to/python3.12     chooses the interpreter for .venv

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet
UV ?= $(firstword $(wildcard $(BIN)/uv) uv)

# Tests start hundreds of short processes. Where no bytecode may be kept, each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# A stamp is written after an installation has succeeded and is redone when the lock or pyproject.toml is newer.
# The dev lock contains the base lock, so installing dev writes both stamps.
BASE_STAMP := $(VENV)/.base-installed
DEV_STAMP := $(VENV)/.dev-installed

# Stamps speak of the interpreter that .venv was made with. When that is gone, they are void.
ifneq ($(shell test -x $(BIN)/python && echo yes),yes)
VOID := set-up-again
endif

# The version manager's shims answer to names that they cannot run, so a candidate is tried, not looked up.
# Debian's python3 has venv but no ensurepip until python3-venv is installed.
define find_python
found= ; lacking= ; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
    if "$$candidate" -c 'import venv, ensurepip' 2>/dev/null; then found="$$candidate"; break; fi; \
    lacking="$${lacking:-$$candidate}"; \
done; \
if [ -z "$$found" ] && [ -n "$$lacking" ]; then \
    echo "error: $$lacking has no venv or ensurepip, which the set-up of $(VENV) needs." >&2; \
    echo "       Install them (Debian, Ubuntu: apt install python3-venv), or name another: make PYTHON=..." >&2; \
    exit 3; \
fi; \
if [ -z "$$found" ]; then \
    echo "error: no Python 3.11 or newer $(if $(PYTHON),at PYTHON=$(PYTHON),on PATH)." >&2; \
    echo "       Install one, or name it: make PYTHON=/path/to/python3.12" >&2; \
    exit 3; \
fi
endef

# A .venv that works is kept; one that does not (interrupted, interpreter gone, too old) is made again.
define make_venv
@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    $(find_python); \
    echo "making $(VENV) with $$("$$found" --version)"; \
    "$$found" -m venv --clear $(VENV) || { \
        echo "error: $$found could not make $(VENV); the lines above say why." >&2; exit 3; }; \
fi
endef

# $(1) is the lock to install. Every archive is checked against its hash; the project itself is built with
# the setuptools of the lock, so nothing unlocked is fetched.
define install
@echo "installing $(1) into $(VENV); the first time takes some minutes"
@$(PIP) --require-hashes -r $(1) || { \
    echo "error: could not install $(1); the lines above say why. Is there a network or a package mirror?" >&2; exit 3; }
@$(PIP) --no-deps --no-build-isolation -e .
endef

.PHONY: help
help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: $(BASE_STAMP)  ## set up, run a group of real processes on this machine, verify its trace on Spark
	@$(BIN)/unisono demo --verify spark

.PHONY: test
test: lint types  ## set up, then lint, types and every test that is not slow
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --ignore=tests/process --ignore=tests/pipeline
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow" tests/process tests/pipeline

.PHONY: test-all
test-all: lint types  ## the same with the slow tests
	$(BIN)/pytest -n 2 --dist worksteal --ignore=tests/process --ignore=tests/pipeline
	$(BIN)/pytest -n 2 --dist loadgroup tests/process tests/pipeline

.PHONY: lint
lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: types
types: $(DEV_STAMP)
	$(BIN)/mypy

.PHONY: behaviour
behaviour: $(DEV_STAMP)  ## compare datagrams, stored records and traces of 2,800 seeded simulations with the baseline
	@$(BIN)/python -m tests.behaviour

.PHONY: bench
bench: $(DEV_STAMP)  ## measure against the references, side by side
	@$(BIN)/python -m benchmarks

.PHONY: compare
compare: $(DEV_STAMP)  ## compare CPU time per message and simulated event with a commit: make compare BASE=COMMIT
	@test -n "$(BASE)" || { echo "error: name the commit to compare with: make compare BASE=COMMIT" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.compare "$(BASE)"

.PHONY: figures
figures: $(DEV_STAMP)  ## draw the documentation's figures anew
	@$(BIN)/python -m benchmarks.figures

.PHONY: fmt
fmt: $(DEV_STAMP)  ## format the code and apply the safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# dev first: base is then held to the versions that dev has, so one .venv serves both.
UV_COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header $(LOCK_FLAGS)
.PHONY: lock
lock:  ## recompile the locked requirements with uv (LOCK_FLAGS=--upgrade for newer versions)
	@$(UV) --version >/dev/null 2>&1 || { echo "error: make lock needs uv: $(BIN)/python -m pip install uv" >&2; exit 3; }
	$(UV_COMPILE) pyproject.toml requirements/build.in --extra dev -o requirements/dev.txt
	$(UV_COMPILE) pyproject.toml requirements/build.in --extra pipeline -c requirements/dev.txt -o requirements/base.txt

.PHONY: clean
clean:  ## remove .venv and every cache; traces in out/ stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: set-up-again
$(BASE_STAMP): requirements/base.txt pyproject.toml $(VOID)
	$(make_venv)
	$(call install,requirements/base.txt)
	@touch $@

$(DEV_STAMP): requirements/dev.txt pyproject.toml $(VOID)
	$(make_venv)
	$(call install,requirements/dev.txt)
	@touch $(BASE_STAMP) $@
