# make setup | demo | flower-demo | test | test-all | test-avx2 | check | format | docs | package | bench | stress | stress-short | clean
# Choose another interpreter or folder with PYTHON=python3.12 and VENV=DIR.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
LOG = $(VENV)/install.log
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
EXTRAS = flower-simulation,prometheus,ray,tensorboard
SOURCES = pyproject.toml constraints.txt
biome = $(if $(shell command -v npx),npx --yes @biomejs/biome@2.6.7 $(1),@echo "JavaScript is skipped: npx, which comes with Node.js, was not found.")

# Tests and commands start hundreds of processes that import this package, so byte code is written even if the
# environment turns that off.
export PYTHONDONTWRITEBYTECODE =

# Each of the two processes gets one core: threads of torch that compete for them only wait for each other.
PYTEST = OMP_NUM_THREADS=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest

# What a CPU without AVX-512 computes: every trainer and every kind of network.
TEST_AVX2 = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -n 2 --dist worksteal \
	$(addprefix tests/learn/test_,networks.py own_tasks.py trainers.py)

# $(call install,NAME,ARGUMENTS) installs packages and shows pip's output only if it fails.
define install
@echo "Installing $(1) into $(VENV) (once; takes a minute or two)"
@$(PIP) $(2) >$(LOG) 2>&1 || { cat $(LOG) >&2; echo "Cannot install $(1); pip's output is above and in $(LOG)." >&2; exit 1; }
endef

# Byte code is written for what commands import; pip would write it for everything, which takes three times as long.
COMPILE = $(BIN)/python -c 'import lesson.cli, matplotlib.pyplot, pandas, scipy.stats, torch'

.PHONY: setup demo flower-demo test test-all test-avx2 check docs format package bench stress stress-short clean

setup: $(VENV)/.installed

demo: setup
	$(BIN)/lesson compare --beta 0.1 --time-budget 8000 --set eval_every_s=300 --out runs/demo

flower-demo: $(VENV)/.installed-flower
	$(BIN)/python examples/flower_deployment/federation.py

test: $(VENV)/.installed-dev
	$(PYTEST) -n 2 --dist worksteal

# Deployments mostly wait for their nodes, so they run two at a time, in parallel with the other tests.
test-all: $(VENV)/.installed-dev
	$(PYTEST) -n 2 --dist loadfile tests/flower -m deployment & deployments=$$!; \
	$(PYTEST) -n 2 --dist worksteal -m 'not deployment'; others=$$?; \
	$(TEST_AVX2); avx2=$$?; \
	wait $$deployments && exit $$((others + avx2))

test-avx2: $(VENV)/.installed-dev
	$(TEST_AVX2)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/render_docs.py --check
	$(call biome,ci --error-on-warnings)

docs: $(VENV)/.installed-dev
	$(BIN)/python tools/render_docs.py --check
	$(BIN)/python tools/build_site.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(call biome,check --write)

# The sdist and the wheel in dist/, as they are released.
package: $(VENV)/.installed-package
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

bench: setup
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/learning.py

stress: $(VENV)/.installed-flower # described in docs/explanation/reliability.md
	@mkdir -p build
	$(BIN)/python -m tests.stress --out build/stress.json

stress-short: $(VENV)/.installed-flower
	$(BIN)/python -m tests.stress --short

clean:
	rm -rf $(VENV) dist runs/demo site

# Python 3.11 comes with pip 23, which cannot install dependency groups.
$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "Python 3.11 or newer is required, but '$(PYTHON)' was not found. Choose one with make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is required, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Choose another with make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV) || \
		{ echo "Python's venv module is required. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PIP) 'pip>=25.1' >$(LOG) 2>&1 || { cat $(LOG) >&2; echo "Cannot upgrade pip; its output is above and in $(LOG)." >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(SOURCES) $(VENV)/.created
	$(call install,LESSON and its dependencies,--editable .)
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-flower: $(SOURCES) $(VENV)/.created
	$(call install,LESSON and Flower,--editable '.[flower]')
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-package: $(SOURCES) $(VENV)/.created
	$(call install,build and twine,--group package)
	@touch $@

# The package stays usable during this step: pip does not touch it and only adds dependencies.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(call install,extras and development tools,'lesson-fl[$(EXTRAS)]' --group dev)
	@touch $@ $(VENV)/.installed-flower
