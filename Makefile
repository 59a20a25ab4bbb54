# Set-up, checks and runs. Everything a target needs is set up by it, once, in .venv.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
SPEEDUPS := $(wildcard guideloom/_speedups/*.pyx guideloom/_speedups/*.pxd guideloom/_speedups/*.h)

# PYTHON=... chooses the interpreter. TORCH_INDEX=URL takes torch from that index. On Linux it must be a CPU build, so that
# nobody downloads gigabytes unasked; CUDA=1 takes what there is.
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
TORCH_INDEX ?=
CUDA ?=
TORCH = torch$(if $(CUDA),,$(if $(filter Linux,$(shell uname)),==$(shell sed -n 's/^torch==//p' constraints.txt)+cpu))

# cython-lint starts pycodestyle by its bare name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help quickstart test check prove build lint types docs checked bench clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: build  ## Write a dataset, train from it, get killed, resume exactly: under 5 minutes
	@start=$$(date +%s); $(BIN)/python examples/quickstart.py && echo "quickstart: $$(($$(date +%s) - start)) s"

test: build  ## The whole test suite
	@$(BIN)/python -m pytest -q

check: build  ## All that CI runs: lint, types, docs, the tests twice over
	@for stage in lint types docs checked test; do \
		echo "== $$stage"; start=$$(date +%s); \
		$(MAKE) --no-print-directory $$stage || exit 1; \
		[ $$stage = test ] || echo "== $$stage: $$(($$(date +%s) - start)) s"; \
	done

prove: build  ## The full proofs of every promise, before a release: long; the power cuts need root and .[prove]
	@GUIDELOOM_PROVE=1 $(BIN)/python -m pytest -q -o timeout=7200 -o faulthandler_timeout=7000

build: build/built  ## The Cython modules, in place

lint: build  ## Style, and which layer may import which
	@$(BIN)/ruff check --quiet --output-format concise
	@$(BIN)/ruff format --check --quiet || { echo "run: $(BIN)/ruff format"; exit 1; }
	@$(BIN)/cython-lint guideloom/_speedups
	@$(BIN)/lint-imports --no-logo || exit 1

types: build  ## Types, and that each .pyi says what its .pyx does
	@$(BIN)/mypy
	@$(BIN)/python -m mypy.stubtest guideloom._speedups --concise \
		--mypy-config-file pyproject.toml --allowlist tests/stubtest-allowlist.txt

docs: build  ## The pages, into docs/_build/html; a broken link is an error
	@$(BIN)/sphinx-build -n -W --keep-going --quiet docs docs/_build/html

# A copy beside the build that is in use: with bounds checks on, both C and modules come out differently.
checked: build  ## The tests of what is compiled once more, with bounds checks in the loops
	@rm -rf build/checked && mkdir -p build/checked
	@tar cf - --exclude='*.so' --exclude='_speedups/*.c' --exclude=__pycache__ setup.py pyproject.toml guideloom tests \
		| tar xf - -C build/checked
	@cd build/checked && GUIDELOOM_CHECKED=1 ../../$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@cd build/checked && ../../$(BIN)/python -m pytest -q \
		tests/speedups tests/sampling tests/storage tests/backends tests/datasets tests/test_ranges.py

bench: build  ## The figures of the docs: quiet machine wanted
	@$(BIN)/python -m benchmarks.stream
	@$(BIN)/python -m benchmarks.documents

clean:  ## Remove what was built; .venv stays
	rm -rf build dist docs/_build guideloom.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f guideloom/_speedups/*.so guideloom/_speedups/*.c

# Set-up: each step leaves a file that is newer than what it was made from.

$(VENV)/created:
	@[ -n "$(PYTHON)" ] || { echo "GuideLoom needs Python 3.11 or newer, as python3.11 or python3 (or say PYTHON=...)"; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "GuideLoom needs a C compiler (Debian: apt-get install gcc libc6-dev)"; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null \
		|| { echo "GuideLoom needs the headers of $(PYTHON) (Debian: apt-get install python3-dev)"; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# First and alone: as a dependency of others, pip would look for it elsewhere.
$(VENV)/torch: constraints.txt | $(VENV)/created
	@$(PIP) install --no-deps --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH) || { \
		echo "There is no CPU build of torch here. Add TORCH_INDEX= and the address of the CPU index that pytorch.org"; \
		echo "names, or CUDA=1 for the usual build, which on Linux is one for CUDA, of several GB."; exit 1; }
	@$(PIP) install --constraint constraints.txt torch
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/torch
	@$(PIP) install --constraint constraints.txt setuptools cython
	@echo "installing and building; a minute or two"
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@mkdir -p build && touch $@ build/built

build/built: $(SPEEDUPS) setup.py | $(VENV)/installed
	@$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@mkdir -p build && touch $@
