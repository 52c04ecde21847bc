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

# Tests start hundreds of short processes. Without cached bytecode, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# A stamp is written after a successful installation. The installation is repeated when the lock or pyproject.toml is
# newer. The dev lock contains the base lock, so installing dev writes both stamps.
BASE_STAMP := $(VENV)/.base-installed
DEV_STAMP := $(VENV)/.dev-installed

# Stamps are valid only as long as the interpreter of .venv exists.
ifneq ($(shell test -x $(BIN)/python && echo yes),yes)
VOID := set-up-again
endif

# A version manager installs shims for interpreters that it cannot run, so each candidate is run and not only looked up.
# Debian's python3 has venv but no ensurepip until python3-venv is installed.
define find_python
found= ; lacking= ; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
    if "$$candidate" -c 'import venv, ensurepip' 2>/dev/null; then found="$$candidate"; break; fi; \
    lacking="$${lacking:-$$candidate}"; \
done; \
if [ -z "$$found" ] && [ -n "$$lacking" ]; then \
    echo "error: $$lacking has no venv or ensurepip module; both are needed to create $(VENV)." >&2; \
    echo "       Install them (Debian, Ubuntu: apt install python3-venv) or use another Python: make PYTHON=..." >&2; \
    exit 3; \
fi; \
if [ -z "$$found" ]; then \
    echo "error: no Python 3.11 or newer $(if $(PYTHON),at PYTHON=$(PYTHON),on PATH)." >&2; \
    echo "       Install one, or give its path: make PYTHON=/path/to/python3.12" >&2; \
    exit 3; \
fi
endef

# Keep a working .venv. Create a broken one again (interrupted set-up, interpreter removed or too old).
define make_venv
@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    $(find_python); \
    echo "creating $(VENV) with $$("$$found" --version)"; \
    "$$found" -m venv --clear $(VENV) || { \
        echo "error: $$found could not create $(VENV); see the output above." >&2; exit 3; }; \
fi
endef

# $(1) is the lock to install. Every archive is checked against its hash; the project itself is built with
# the setuptools of the lock, so nothing unlocked is fetched.
define install
@echo "installing $(1) into $(VENV); the first time takes a few minutes"
@$(PIP) --require-hashes -r $(1) || { \
    echo "error: could not install $(1); see the output above. Is a network or package mirror reachable?" >&2; exit 3; }
@$(PIP) --no-deps --no-build-isolation -e .
endef

.PHONY: help
help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: $(BASE_STAMP)  ## set up, run a group of real processes on this machine, verify its trace on Spark
	@$(BIN)/unisono demo --verify spark

.PHONY: test
test: lint types  ## set up, then run the linter, the type checker and all tests that are not slow
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --ignore=tests/process --ignore=tests/pipeline
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow" tests/process tests/pipeline

.PHONY: test-all
test-all: lint types  ## the same, with the slow tests
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
bench: $(DEV_STAMP)  ## run the benchmarks, each next to its reference
	@$(BIN)/python -m benchmarks

.PHONY: compare
compare: $(DEV_STAMP)  ## compare CPU time per message and simulated event with a commit: make compare BASE=COMMIT
	@test -n "$(BASE)" || { echo "error: give the commit to compare with: make compare BASE=COMMIT" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.compare "$(BASE)"

.PHONY: figures
figures: $(DEV_STAMP)  ## redraw the figures of the documentation
	@$(BIN)/python -m benchmarks.figures

.PHONY: options
options: $(DEV_STAMP)  ## write docs/options.md from the definitions of the options
	@$(BIN)/python -m benchmarks.options_page

.PHONY: fmt
fmt: $(DEV_STAMP)  ## format the code and apply safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# dev comes first and constrains the versions of base, so that one .venv can hold both.
UV_COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header $(LOCK_FLAGS)
.PHONY: lock
lock:  ## recompile the locked requirements with uv (LOCK_FLAGS=--upgrade for newer versions)
	@$(UV) --version >/dev/null 2>&1 || { echo "error: make lock needs uv: $(BIN)/python -m pip install uv" >&2; exit 3; }
	$(UV_COMPILE) pyproject.toml requirements/build.in --extra dev -o requirements/dev.txt
	$(UV_COMPILE) pyproject.toml requirements/build.in --extra pipeline -c requirements/dev.txt -o requirements/base.txt

.PHONY: clean
clean:  ## remove .venv and all caches; keep the traces in out/
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
