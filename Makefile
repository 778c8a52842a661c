# Everything a clone needs: `make run` (install, then the quickstart) and `make test` (install, lint, tests).
# Stamps in .venv remember what is installed, so a second call starts at once.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
ARGS   ?=
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --quiet --no-warn-script-location -c constraints.txt
# Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), every command would compile all of orch anew.
COMPILE := $(BIN)/python -m compileall -q orch techniques

.DEFAULT_GOAL := help
.PHONY: help run test test-machines test-others browser quick lint format bench bench-accuracy bench-links bench-moe-links matrix gpu wheel clean distclean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 18

run: $(STAMPS)/run  ## install, then run recipes/quickstart.yaml (ARGS="measure.blocks=4" are passed on)
	@$(BIN)/orch run recipes/quickstart.yaml $(ARGS)

# Tests wait for processes more than they compute, so two halves run at once. The first is all that makes namespaces and gangs
# of other machines' kinds, whose leftovers its tests count. Each half's output comes whole, when it ends.
HALF  := tests/gang tests/launch tests/doctor tests/commands tests/matrix tests/examples tests/experiment/test_emulated.py
HALVES := env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(BIN)/python -m pytest -q $(ARGS)

test: lint browser  ## install what tests need, lint, and run every test
	@echo "running the tests, in two halves whose output comes when they end (about a quarter of an hour on 2 cores) ..." >&2
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-machines test-others

test-machines: $(STAMPS)/dev
	@$(HALVES) $(HALF)

test-others: $(STAMPS)/dev
	@$(HALVES) $(HALF:%=--ignore=%) tests


# Reports are tested in a real browser. Without the right to install one their test is skipped, unless ORCH_BROWSER=required.
browser:  ## chromium and its driver, which tests of reports need (apt-get, when root)
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium, which tests of reports need (once) ..." >&2; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver; } \
	    >/dev/null || echo "cannot install chromium: tests in a browser will be skipped" >&2; \
	else echo "no chromium: tests in a browser will be skipped (as root: make browser)" >&2; fi

quick: $(STAMPS)/dev  ## the tests that take less than ten seconds each
	@$(BIN)/python -m pytest -q -m "not slow and not gpu" $(ARGS)

lint: $(STAMPS)/dev  ## ruff, strict types, import layers, size rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "make format would change files" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > $(STAMPS)/lint-imports.log || { cat $(STAMPS)/lint-imports.log; exit 1; }
	@$(BIN)/python tools/house.py

format: $(STAMPS)/dev  ## let ruff rewrite what it can
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

bench: $(STAMPS)/dev  ## every figure of benchmarks/RESULTS.md, again
	@$(BIN)/python -m benchmarks $(ARGS)

bench-accuracy: $(STAMPS)/dev  ## predicted and emulated step times over models, stacks and links (root; an hour)
	@$(BIN)/python -m benchmarks.bench_accuracy $(ARGS)

bench-links: $(STAMPS)/dev  ## every technique for gradients on emulated links beside torch's DDP (root; goes on where it stopped)
	@$(BIN)/python -m benchmarks.bench_links $(ARGS)

bench-moe-links: $(STAMPS)/dev  ## every schedule of mixture-of-experts layers on emulated links beside the naive layer (root; minutes)
	@$(BIN)/python -m benchmarks.bench_moe_links $(ARGS)

matrix: $(STAMPS)/dev  ## every technique with every other, in worlds 1 to 8; emulated clusters again and again (long)
	@$(BIN)/python -m pytest -q --long tests/matrix $(ARGS)

gpu: $(STAMPS)/dev  ## the tests that need an accelerator
	@$(BIN)/python -m pytest -q -m gpu tests/gpu $(ARGS)

wheel: $(STAMPS)/venv  ## dist/orch-*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove caches and builds; keeps .venv and runs/
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf $(VENV)

# Debian splits ensurepip off python3; then pip, which a machine without python3-venv may still have, installs into the bare environment.
$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "orch needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1 || true). Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) \
	  && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || \
	  { rm -rf $(VENV); echo "cannot make $(VENV): install python3-venv (apt-get install python3-venv), then make again" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "installing orch[run] into $(VENV) (two to three minutes, once) ..." >&2
	@$(PIP) -e '.[run]'
	@$(COMPILE)
	@touch $@

$(STAMPS)/dev: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "installing orch[run,dev] into $(VENV) (two to three minutes, once) ..." >&2
	@$(PIP) -e '.[run,dev]'
	@$(COMPILE)
	@touch $@ $(STAMPS)/run
