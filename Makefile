# make setup | demo | flower-demo | test | test-all | flower-test | check | docs | bench | stress | stress-short
# PYTHON=python3.12 and VENV=DIR choose another interpreter or folder.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
# On all cores, where pip takes one; the status is that of a few templates in packages, which are not valid Python.
COMPILE = @$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
SOURCES = pyproject.toml constraints.txt

PYTEST = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest

.PHONY: setup demo flower-demo test test-all flower-test check docs format bench stress stress-short clean

setup: $(VENV)/.installed

demo: setup
	$(BIN)/lesson compare --beta 0.1 --out runs/demo --resume

flower-demo: $(VENV)/.installed-flower
	$(BIN)/python examples/flower_deployment/federation.py

test: $(VENV)/.installed-dev
	$(PYTEST) -n 2 --dist worksteal

# Deployments mostly wait for their nodes, so they run beside the other tests.
test-all: $(VENV)/.installed-dev
	$(PYTEST) tests/flower -m deployment & deployment=$$!; \
	$(PYTEST) -n 2 --dist worksteal -m 'not deployment'; others=$$?; \
	wait $$deployment && exit $$others

flower-test: $(VENV)/.installed-dev
	$(PYTEST) tests/flower -m deployment

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/python tools/render_docs.py --check
	$(BIN)/python tools/build_site.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/learning.py

stress: setup # described in docs/explanation/reliability.md
	@mkdir -p build
	$(BIN)/python -m tests.stress --out build/stress.json

stress-short: setup
	$(BIN)/python -m tests.stress --short

clean:
	rm -rf $(VENV) runs/demo site

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Python 3.11 or newer must be there, $(PYTHON) is not; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "== a virtual environment in $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || \
		{ echo "the venv module must be there; on Debian: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.installed: $(SOURCES) | $(VENV)/.made
	@echo "== installing lesson and what it needs into $(VENV); once, a minute or two"
	$(PIP) --editable .
	$(COMPILE)
	@touch $@

$(VENV)/.installed-flower: $(SOURCES) | $(VENV)/.made
	@echo "== installing lesson and Flower into $(VENV); once, a minute or two"
	$(PIP) --editable '.[flower]'
	$(COMPILE)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(SOURCES) | $(VENV)/.made
	@echo "== installing lesson and what its tests need into $(VENV); once, a minute or two"
	$(PIP) --editable '.[dev]'
	$(COMPILE)
	@touch $@ $(VENV)/.installed $(VENV)/.installed-flower
