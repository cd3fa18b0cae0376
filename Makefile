# Everything runs in .venv, made with plain venv and pip. Needs Python 3.11 or newer, git and make.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Whole files of tests for each process: what a file sets up is set up once. Not those with most tests
# first, but the long ones, as tests/conftest.py says.
SPREAD := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: install compiled demo test quick ready browser pictures fuzz mutants lint docs coverage bench models wheels clean

install: $(STAMP)

# Ready when the environment matches pyproject.toml and constraints.txt; then nothing is done again.
# Compiled ahead: where Python may not write bytecode, each start would cost half as much again. On all
# cores, which pip would not do. Without sympy, a fifth of it all, for tools of ONNX Runtime that nobody
# starts here.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "qnnmem needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	-@$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|sympy|mpmath)/' .venv # some are for other versions of Python
	$(BIN)/python -m compileall -q -j 0 src
	@touch $(STAMP)

demo: install
	@$(BIN)/python tools/demo.py

test: install compiled models browser
	$(BIN)/python -m pytest $(SPREAD) $(if $(CI),--durations=20)

# Programs that tests start would compile what was changed since, each for itself, where Python may
# write no bytecode.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q -j 0 src

# Everything that computes in this process alone: under a minute of one processor.
quick: install compiled
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

# What each process of the tests would do for itself, half a minute long: assertions are rewritten,
# and, by one test of any text, Hypothesis learns all characters and the constants of the package. It
# is kept beside the files and in .hypothesis, also where Python may write no bytecode. What is wrong,
# `test` says.
ready: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -qq -k test_colour_changes_no_text >/dev/null 2>&1 || true

# Pages are tested in Chromium. A machine that is there for tests (CI is set, we are root, Debian) gets
# it; any other is left as it is, and where there is none the tests that need it are skipped.
CHROMIUM := timeout 200 apt-get -qq -y -o DPkg::Lock::Timeout=60 install --no-install-recommends chromium
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { $(CHROMIUM) || { timeout 120 apt-get -qq update && $(CHROMIUM); }; } >/dev/null 2>&1; \
	fi; \
	command -v chromium >/dev/null || echo "No Chromium or Chrome: tests of pages in a browser are skipped"

# Reference pictures of pages, in tests/report/pictures: look at each before you commit it.
pictures: install browser
	$(BIN)/python tests/page_pictures.py

# Hostile files through every reader; what fails is kept in .cache/fuzz. TARGET=logs for one reader.
CASES ?= 20000
SEED ?= 0
JOBS ?= 2
fuzz: install
	$(BIN)/python tools/fuzz.py --cases $(CASES) --seed $(SEED) --jobs $(JOBS) $(addprefix --target ,$(TARGET))

# Faults planted in the modules that guard, to see whether tests notice. SAMPLE=0 plants all.
SAMPLE ?= 40
mutants: install
	$(BIN)/python tools/mutants.py --sample $(SAMPLE) --seed $(SEED) --jobs $(JOBS) $(MODULE)

# Real models, by package name and version; what cannot be had is said and its tests are skipped.
models: $(STAMP)
	@$(BIN)/python tools/models.py --tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/. What the program knows is written anew first; a broken link or anchor ends the
# build (not with --quiet, which hides warnings from --strict).
docs: install
	$(BIN)/python tools/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Wrote site/index.html"

coverage: install models browser
	$(BIN)/python -m pytest $(SPREAD) --cov=qnnmem --cov-branch --cov-report=term-missing:skip-covered

bench: install
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/lpai.py
	$(BIN)/python benchmarks/htp.py
	$(BIN)/python benchmarks/doctor.py
	$(BIN)/python benchmarks/client.py
	$(BIN)/python benchmarks/watch.py
	$(BIN)/python benchmarks/page.py

# Three wheels in dist/: for any machine, and with the parts in C compiled for x86-64 and aarch64.
wheels: install
	$(BIN)/python tools/wheels.py

clean:
	rm -rf .venv .cache .coverage build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
